"""EmqxPlugin: EMQX 4's names for a source of access and its settings, for the conversion of an EMQX configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple


class EmqxKey(NamedTuple):
    """The setting that a key of EMQX is converted to, and the form of EMQX's value. ``file``: the path of a file, or in
    an export its name and its content. ``peer``: ``verify_peer``, or ``verify_none``."""

    setting: str
    kind: Literal["text", "number", "seconds", "flag", "file", "peer"]


_FILES: Final = {"cacertfile": "cafile", "cafile": "cafile", "certfile": "certfile", "keyfile": "keyfile"}
TLS_KEYS: Final = {
    "ssl": EmqxKey("tls", "flag"),
    "ssl.verify": EmqxKey("tls_verify", "flag"),
    "verify": EmqxKey("tls_verify", "flag"),
    # ``ssl.`` in files, nothing in modules, ``ssl_opts.`` in files of older versions.
    **{f"{prefix}{key}": EmqxKey(setting, "file")
       for prefix in ("ssl.", "", "ssl_opts.") for key, setting in _FILES.items()},
}  # fmt: skip
COMMON_KEYS: Final = {
    "pool": EmqxKey("pool_size", "number"),
    "pool_size": EmqxKey("pool_size", "number"),
    "query_timeout": EmqxKey("timeout", "seconds"),
    **TLS_KEYS,
}
"""The keys of each database."""
WITHOUT_SETTING: Final = {
    "auto_reconnect": "a lost connection is always opened again",
    "encoding": "texts are UTF-8",
    "tls_versions": "TLS 1.2 and later",
    "ssl.tls_versions": "TLS 1.2 and later",
    "ssl_opts.tls_versions": "TLS 1.2 and later",
    "server_name_indication": "the name in the server's address is used",
    "ssl.server_name_indication": "the name in the server's address is used",
    "pbkdf2_macfun": "password_hash has it",
    "pbkdf2_iterations": "password_hash has it",
    "pbkdf2_dklen": "password_hash has it",
}


@dataclass(frozen=True, kw_only=True)
class EmqxPlugin:
    """``orders``: the names of the source in EMQX's ``auth_order`` and ``acl_order``. ``plugin``: the plugin that the
    source corresponds to; empty: none. ``prefix``: the beginning of its keys. ``module``: its type in exports of EMQX
    Enterprise.

    ``keys``: by EMQX's key without the prefix, or by the key of the module. Empty: nothing is converted.
    ``without_setting``: keys that have no setting here, and why. ``absent``: settings whose default differs from EMQX's
    behaviour without the key. ``listed``: a setting that is a list of tables, with keys such as ``filters.1.key`` in
    EMQX. ``asks_next``: EMQX asks the next source if this one does not answer. ``used_with``: settings that EMQX uses
    only with certain values of another setting, and these values."""

    orders: tuple[str, ...]
    plugin: str = ""
    prefix: str = ""
    module: str = ""
    keys: Mapping[str, EmqxKey] = field(default_factory=dict)
    without_setting: Mapping[str, str] = field(default_factory=lambda: WITHOUT_SETTING)
    absent: Mapping[str, str | bool] = field(default_factory=dict)
    asks_next: bool = False
    used_with: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    listed: str = ""
