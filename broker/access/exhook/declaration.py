"""The declaration of ``[access.exhook]``: its settings, and the requirements for their values."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ...setting_rules import check_url, parsed
from ..declaration import AccessSource, RemoteSettings, SourceReason


class ExhookProvider(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A further provider of EMQX's exhook protocol."""

    url: str
    cacertfile: str = ""
    certfile: str = ""
    keyfile: str = ""


class ExhookAccessSettings(RemoteSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Providers of EMQX's exhook protocol. ``timeout`` is EMQX's ``request_timeout``, ``on_failure`` its
    ``request_failed_action``."""

    url: str
    cacertfile: str = ""
    certfile: str = ""
    keyfile: str = ""
    more: Annotated[list[ExhookProvider], Meta(max_length=15)] = []


SOURCE: Final = AccessSource(
    name="exhook",
    place=9,
    settings=ExhookAccessSettings,
    create="taipan.broker.access.exhook.source:ExhookSource",
    check="taipan.broker.access.exhook.source:faults",
    extra="taipan-mqtt[exhook]",
    rules={"url": parsed(check_url)},
    shown=frozenset(["url", "cacertfile", "certfile", "more"]),
    reasons=(
        SourceReason("client", "bad_username_or_password", ("access.exhook.url",), "the provider denied the login"),
        SourceReason(
            "client",
            "not_authorized",
            ("access.exhook.url",),
            "the client gave no username, and the provider denied the login",
        ),
        SourceReason(
            "message",
            "not_authorized",
            ("access.exhook.url",),
            "the provider denied it, or did not answer in time (access.exhook.timeout) and on_failure is deny",
        ),
    ),
)
