"""The declaration of ``[access.http]``: its settings, and the requirements for their values."""

import re
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from ...setting_rules import Fault, check_url, parsed
from ..declaration import AccessSource, RemoteSettings, SourceReason
from ..emqx_plugin import EmqxPlugin
from ..placeholders import templates

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^`|~\w-]+", re.ASCII)
_NO_HEADER_VALUE: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")

HttpMethod = Literal["post", "get"]


class HttpAccessSettings(RemoteSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A service that is asked over HTTP. Values of the ``..._params`` are texts with placeholders, see
    ``access.http``."""

    auth_url: str = ""  # empty: not asked
    auth_method: HttpMethod = "post"
    auth_params: dict[str, str] = msgspec.field(
        default_factory=lambda: {"clientid": "%c", "username": "%u", "password": "%P"}
    )
    superuser_url: str = ""
    superuser_method: HttpMethod = "post"
    superuser_params: dict[str, str] = msgspec.field(default_factory=lambda: {"clientid": "%c", "username": "%u"})
    acl_url: str = ""
    acl_method: HttpMethod = "post"
    acl_params: dict[str, str] = msgspec.field(
        default_factory=lambda: {
            "access": "%A",
            "username": "%u",
            "clientid": "%c",
            "ipaddr": "%a",
            "topic": "%t",
            "mountpoint": "%m",
        }
    )
    body: Literal["form", "json"] = "form"
    headers: dict[str, str] = {}
    tls_verify: bool = True
    cafile: str = ""


def _headers(value: dict[str, str]) -> Iterator[Fault]:
    for name, text in value.items():
        if not _HEADER_NAME.fullmatch(name) or _NO_HEADER_VALUE.search(text):
            yield Fault((name,), "expected the name and value of an HTTP header")


SOURCE: Final = AccessSource(
    name="http",
    place=4,
    settings=HttpAccessSettings,
    emqx=EmqxPlugin(orders=("http",), plugin="emqx_auth_http", module="http_authentication"),
    create="taipan.broker.access.http.source:HttpSource",
    check="taipan.broker.access.http.settings:faults",
    rules={
        "auth_url": parsed(check_url),
        "auth_params": templates("At"),
        "superuser_url": parsed(check_url),
        "superuser_params": templates("AtP"),
        "acl_url": parsed(check_url),
        "acl_params": templates("P"),
        "headers": _headers,
    },
    shown=frozenset(["auth_method", "auth_params", "auth_url", "cafile"]),
    reasons=(
        SourceReason("client", "bad_username_or_password", ("access.http.auth_url",), "the service denied the login"),
        SourceReason(
            "client",
            "not_authorized",
            ("access.http.auth_url",),
            "the client gave no username, and the service denied the login",
        ),
        SourceReason(
            "message",
            "not_authorized",
            ("access.http.acl_url",),
            "the service denied it, or did not answer in time (access.http.timeout) and on_failure is deny. A Will "
            "is also refused if the service was not asked at CONNECT",
        ),
    ),
)
