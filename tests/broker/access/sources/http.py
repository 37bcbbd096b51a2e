"""An HTTP service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.auth_service import Question, Reply, auth_service

from . import Setup


def about_login(asked: Question) -> Reply:
    if asked["username"] != "ann":
        return "ignore"
    return 200 if asked["password"] == "right" else 401


@asynccontextmanager
async def set_up() -> AsyncIterator[Setup]:
    async with auth_service() as service:
        service.replies["/auth"] = about_login
        service.replies["/acl"] = lambda asked: {"open": 200, "shut": 403}.get(asked["topic"], "ignore")
        port = service.port
        yield Setup(settings={"http": service.settings()}, away=service.stop, back=lambda: service.start(port))
