"""A node with its management server in this process, and a client for its HTTP API."""

import asyncio
import base64
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec

from taipan.broker.cluster.nats.interface import Nats
from taipan.broker.core.cluster import Cluster
from taipan.management.configuration.settings import DashboardSettings, HistorySettings, ManagementSettings
from taipan.management.management_server import NONE, ManagementServer
from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.engine import RuleEngine

from .node import Node, make_settings

APP_ID, SECRET = "tester", "a secret"


class Reply:
    """One answer: ``status``, ``headers``, ``json`` (``None`` where the body is none), ``text``."""

    def __init__(self, status: int, headers: Any, octets: bytes) -> None:
        self.status = status
        self.headers = headers
        self.octets = octets

    @property
    def text(self) -> str:
        return self.octets.decode()

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.octets)
        except ValueError:
            return None

    @property
    def code(self) -> Any:
        return self.json["code"]

    @property
    def data(self) -> Any:
        """``data`` of an answer that must have succeeded."""
        assert self.status == 200 and self.code == 0, (self.status, self.text)
        return self.json["data"]

    @property
    def meta(self) -> Any:
        return self.json["meta"]


class ApiClient:
    """Asks a management server as the test application does."""

    def __init__(self, url: str, prefix: str = "/api/v4", app: tuple[str, str] | None = (APP_ID, SECRET)) -> None:
        self.url = url
        self.prefix = prefix
        self.app = app
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Reply:
        """``path``: relative to the prefix, percent-encoded. ``body`` is sent as JSON, ``raw`` as it is."""
        if self._session is None:
            # Its idle connection stays, however long a test takes: tests count connections.
            connector = aiohttp.TCPConnector(keepalive_timeout=3600)
            self._session = aiohttp.ClientSession(connector=connector)
        sent = dict(headers or {})
        if self.app is not None:
            sent.setdefault("Authorization", "Basic " + base64.b64encode(":".join(self.app).encode()).decode())
        data = raw if body is None else json.dumps(body).encode()
        if query:
            path += "?" + urlencode(query)
        from yarl import URL

        url = URL(self.url + self.prefix + path, encoded=True)
        async with self._session.request(method, url, data=data, headers=sent, allow_redirects=False) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, **query: Any) -> Reply:
        return await self.ask("GET", path, **query)

    async def post(self, path: str, body: Any = None, **query: Any) -> Reply:
        return await self.ask("POST", path, body, **query)

    async def put(self, path: str, body: Any = None, **query: Any) -> Reply:
        return await self.ask("PUT", path, body, **query)

    async def delete(self, path: str, **query: Any) -> Reply:
        return await self.ask("DELETE", path, **query)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)


def assert_refused(reply: Reply, status: int, code: int, about: str = "") -> None:
    """An error with this status and code, in whose message ``about`` stands."""
    assert (reply.status, reply.code) == (status, code), reply.text
    assert about in reply.json["message"], reply.text


async def connect_code(
    node: Node,
    client_id: str,
    username: str | None = None,
    password: bytes | None = None,
    version: int = 5,
    **more: Any,
) -> int:
    """The Reason Code of a CONNECT with these credentials, after which the connection ends."""
    peer = node.peer(version)
    await peer.connect(client_id, username=username, password=password, expect=None, **more)
    await peer.drop()
    return peer.connack.reason_code


def segment(text: str) -> str:
    """One path segment, percent-encoded."""
    return quote(text, safe="")


class ManagedNode(Node):
    """A node with rule engine and management server. ``api`` asks it; ``engine``, ``management``, ``server`` are its
    parts."""

    packages = ("taipan.broker", "taipan.management", "taipan.ruleengine", "aiohttp")

    def __init__(
        self,
        settings: Any,
        management: ManagementSettings,
        ruleengine: RuleEngineSettings | None = None,
        cluster: Cluster | None = None,
        nats: Nats | None = None,
        history: HistorySettings | None = None,
        dashboard: DashboardSettings = NONE,
    ) -> None:
        """``cluster``: in place of what the settings make. ``nats``: its connection to the other nodes."""
        super().__init__(settings, nats)
        if cluster is not None:
            self.server.cluster = cluster
        self.engine = RuleEngine(self.server, ruleengine or RuleEngineSettings())
        self.management = ManagementServer(
            self.server, management, self.engine, history or HistorySettings(), dashboard
        )
        self.api: ApiClient

    @property
    def name(self) -> str:
        return self.settings.node.name

    async def start(self) -> "ManagedNode":
        await super().start()
        self.engine.start()
        try:
            await self.management.start()
        except BaseException:
            await super().stop()
            raise
        self.api = ApiClient(self.management.url)
        return self

    async def stop(self) -> None:
        await self.close_clients()
        await self.api.close()
        await self.management.stop()
        await self.engine.close()
        await super().stop()


@asynccontextmanager
async def managed_node(
    management: dict[str, Any] | None = None,
    zone: dict[str, Any] | None = None,
    listeners: list[dict[str, Any]] | None = None,
    ruleengine: dict[str, Any] | None = None,
    history: dict[str, Any] | None = None,
    dashboard: dict[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[ManagedNode]:
    """A node for as long as the block lasts; arguments as for ``make_settings``, ``management`` is ``[management]``,
    ``ruleengine`` is ``[ruleengine]``, ``history`` is ``[history]``, and ``dashboard`` is ``[dashboard]``, without
    which there is none."""
    with tempfile.TemporaryDirectory(prefix="taipan-api-") as directory:
        config["node"] = {"data_dir": directory, **config.get("node", {})}
        table = {"bind": "127.0.0.1:0", "apps": [{"id": APP_ID, "secret": SECRET}], **(management or {})}
        settings = msgspec.convert(table, ManagementSettings)
        rules = msgspec.convert(ruleengine or {}, RuleEngineSettings)
        kept = msgspec.convert(history or {}, HistorySettings)
        made = NONE
        if dashboard is not None:
            made = msgspec.convert({"enabled": True, "bind": "127.0.0.1:0", **dashboard}, DashboardSettings)
        broker = make_settings(zone, listeners, **config)
        node = await ManagedNode(broker, settings, rules, history=kept, dashboard=made).start()
        try:
            yield node
        finally:
            await node.stop()
