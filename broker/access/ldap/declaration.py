"""The declaration of ``[access.ldap]``: its settings, and the requirements for their values."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ...setting_rules import filled, parsed
from ..database_settings import SHOWN, ServerSettings, address_of
from ..declaration import AccessSource, SourceReason
from ..emqx_plugin import TLS_KEYS, EmqxKey, EmqxPlugin


class LdapFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A condition for an entry. ``op``: how the next condition is combined with it."""

    key: str
    value: str
    op: Literal["and", "or"] = "and"


class LdapAccessSettings(ServerSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys that also exist in EMQX 4 have its defaults, except the published password of ``bind_dn``."""

    servers: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65_535)] = 389
    start_tls: bool = False
    bind_dn: str = ""
    bind_password: str = ""
    device_dn: str = "ou=device,dc=emqx,dc=io"
    custom_base_dn: str = "${username_attr}=${user},${device_dn}"
    match_objectclass: str = "mqttUser"
    filters: tuple[LdapFilter, ...] = ()
    username_attributetype: str = "uid"
    password_attributetype: str = "userPassword"
    bind_as_user: bool = False
    groups_dn: str = ""
    superuser_group: str = ""


def addresses_of(servers: str, port: int) -> list[tuple[str, int]]:
    """Return the addresses in a list separated by commas. Raises ``ValueError``."""
    found = [address_of(each, port) for each in servers.split(",") if each.strip()]
    if not found:
        raise ValueError("expected a server")
    return found


SOURCE: Final = AccessSource(
    name="ldap",
    place=8,
    settings=LdapAccessSettings,
    create="taipan.broker.access.ldap.source:LdapSource",
    check="taipan.broker.access.ldap.source:faults",
    extra="taipan-mqtt[ldap]",
    emqx=EmqxPlugin(
        orders=("ldap",),
        plugin="emqx_auth_ldap",
        prefix="auth.ldap.",
        module="ldap_authentication",
        keys={
            **TLS_KEYS,
            "servers": EmqxKey("servers", "text"),
            "port": EmqxKey("port", "number"),
            "pool": EmqxKey("pool_size", "number"),
            "pool_size": EmqxKey("pool_size", "number"),
            "timeout": EmqxKey("timeout", "seconds"),
            "bind_as_user": EmqxKey("bind_as_user", "flag"),
            "ssl.verify": EmqxKey("tls_verify", "peer"),
            **{
                key: EmqxKey(key, "text")
                for key in ("bind_dn", "bind_password", "device_dn", "custom_base_dn", "match_objectclass")
            },
            "username.attributetype": EmqxKey("username_attributetype", "text"),
            "username_attributetype": EmqxKey("username_attributetype", "text"),
            "password.attributetype": EmqxKey("password_attributetype", "text"),
            "password_attributetype": EmqxKey("password_attributetype", "text"),
        },
        listed="filters",
        absent={"tls_verify": False},
    ),
    rules={
        "servers": parsed(lambda text: addresses_of(text, 389)),
        "username_attributetype": filled("the name of an attribute"),
        "password_attributetype": filled("the name of an attribute"),
    },
    shown=SHOWN | {"bind_dn", "password_attributetype"},
    reasons=(
        SourceReason(
            "client",
            "bad_username_or_password",
            ("access.ldap.custom_base_dn",),
            "the directory has the user with another password, without one that can be used, or disabled",
        ),
        SourceReason(
            "client",
            "not_authorized",
            ("access.ldap.custom_base_dn",),
            "the client gave neither a username nor a password, and the directory has the user",
        ),
        SourceReason(
            "message",
            "not_authorized",
            ("access.ldap.device_dn",),
            "the user is disabled, or the directory did not answer and on_failure is deny",
        ),
    ),
)
