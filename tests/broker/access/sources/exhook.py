"""A provider of EMQX's exhook protocol."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from . import Setup


@asynccontextmanager
async def set_up() -> AsyncIterator[Setup]:
    from taipan.broker.access.exhook.messages import CLASSES, IGNORE
    from tests.support.exhook_provider import Provider, decided

    def about_login(asked: Any) -> Any:
        if asked.clientinfo.username != "ann":
            return CLASSES["ValuedResponse"](type=IGNORE)
        return decided(asked.clientinfo.password == "right")

    def about_topic(asked: Any) -> Any:
        known = {"open": True, "shut": False}.get(asked.topic)
        return CLASSES["ValuedResponse"](type=IGNORE) if known is None else decided(known)

    provider = Provider(client__authenticate=[], client__check_acl=[])
    provider.answers = {"OnClientAuthenticate": about_login, "OnClientCheckAcl": about_topic}
    await provider.start()
    try:
        yield Setup(settings={"exhook": {"url": provider.url}}, away=provider.stop, back=provider.start)
    finally:
        await provider.stop()
