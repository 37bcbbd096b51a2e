"""What actions and resources are tested in when alone: an engine with a real server, and servers to talk to."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, cast

from aiohttp import web

from taipan.broker.config import ZoneSettings
from taipan.broker.mqtt.message import Message
from taipan.broker.server import Server
from taipan.broker.session.client_info import ClientInfo
from taipan.ruleengine.actions.action import Action, ActionPlace, ActionType, Row
from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.delivery.buffer_store import BufferStore
from taipan.ruleengine.event import Event, Near
from taipan.ruleengine.events import MESSAGE_PUBLISH
from taipan.ruleengine.params import check_params
from taipan.ruleengine.resources.resource import Resource, ResourcePlace, ResourceType
from tests.support.node import free_port, make_settings

QUICK = RuleEngineSettings(
    retry_backoff=0.01, retry_backoff_max=0.05, breaker_pause=0.05, liveness_interval=0.05, close_timeout=0.3
)


class FakeReport:
    """A report that remembers its calls."""

    def __init__(self) -> None:
        self.successes = 0
        self.failures: list[tuple[str, Row | None]] = []

    def success(self, count: int = 1) -> None:
        self.successes += count

    def failed(self, reason: str, row: Row | None = None, event: Event | None = None, count: int = 1) -> None:
        self.failures += [(reason, row)] * count

    @property
    def count(self) -> int:
        return self.successes + len(self.failures)


class FakeEngine:
    """What actions and resources see of an engine. ``await close()`` ends what runs."""

    def __init__(self, settings: RuleEngineSettings = QUICK, server: Server | None = None) -> None:
        self.server = server or Server(make_settings())
        self.settings = settings
        self.buffers = BufferStore(self.server.tables)
        self.resources: dict[str, Resource] = {}
        self.alive: list[bool] = []
        self.report = FakeReport()

    def resource(self, id: str) -> Resource | None:
        return self.resources.get(id)

    def make(self, type: ResourceType, id: str = "resource:1", **config: Any) -> Resource:
        """A resource that has not started. Raises ParamError."""
        place = ResourcePlace(id, check_params(config, type.params), cast(Any, self), self.alive.append)
        return type.create(place)

    def run(self, type: ResourceType, id: str = "resource:1", **config: Any) -> Any:
        """A resource that runs."""
        made = self.resources[id] = self.make(type, id, **config)
        made.start()
        return made

    def action(self, type: ActionType, id: str = "action_1", report: FakeReport | None = None, **params: Any) -> Action:
        """Raises ParamError."""
        checked = check_params({"$resource": "resource:1", **params}, type.params)
        return type.create(ActionPlace(id, "rule:1", checked, cast(Any, self), report or self.report))

    async def close(self) -> None:
        for each in self.resources.values():
            await each.close()


def published(
    topic: str = "t/1", payload: bytes = b"{}", qos: int = 0, retain: bool = False, client_id: str = "c1"
) -> Event:
    """The event of a message that a client has published."""
    client = ClientInfo("taipan@127.0.0.1", ZoneSettings(), client_id=client_id)
    message = Message(topic, payload, qos, retain, publisher=client)
    return Event(MESSAGE_PUBLISH, Near("taipan@127.0.0.1", Random(1)), 1.0, client, message)


class HttpSink:
    """An HTTP server on a port of its own that can be started, stopped and started again.

    ``requests`` are (method, path with query, headers in lower case, body) of everything that came; ``answer`` makes
    the replies.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answer: Callable[[web.Request, bytes], Awaitable[web.StreamResponse]] = _ok
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[bytes]:
        return [each[3] for each in self.requests]

    async def start(self, tls: ssl.SSLContext | None = None) -> HttpSink:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=tls).start()
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.method, request.raw_path, headers, body))
        return await self.answer(request, body)


async def _ok(request: web.Request, body: bytes) -> web.StreamResponse:
    return web.Response(text="ok")


def status(code: int, **headers: str) -> Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]:
    """An ``answer`` with this status."""

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        return web.Response(status=code, headers=headers, text="no")

    return answer
