"""The dashboard in Debian's Chromium: a node process, pages that are watched, accessibility."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request

from .api import ApiClient, segment
from .node import NodeProcess, free_port
from .patience import patience
from .peer import Address, Peer

ROOT: Final = Path(__file__).resolve().parents[2]
CHROMIUM: Final = Path("/usr/bin/chromium")
BUILT: Final = ROOT / "management" / "dashboard" / "static" / "index.html"
AXE: Final = ROOT / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE: Final = 45.0
"""Seconds, on a machine that has much else to do; what is awaited comes much sooner."""
PASSWORD: Final = "Viewer-of-things-1"
"""Of the users that tests make."""

CONFIG = """
[node]
name = "{name}"
data_dir = "{data_dir}"
[log]
level = "warning"
[access]
hash_cost = 10
[[listeners]]
name = "tcp"
type = "tcp"
bind = "127.0.0.1:{tcp}"
[[listeners]]
name = "ws"
type = "ws"
bind = "127.0.0.1:{ws}"
allowed_origins = ["*"]
[management]
bind = "127.0.0.1:{management}"
[dashboard]
bind = "127.0.0.1:{dashboard}"
"""


class DashboardNode:
    """A node process with its dashboard, an administrator and the clients of a test."""

    def __init__(
        self,
        directory: Path,
        more: str = "",
        env: Mapping[str, str] | None = None,
        name: str = "taipan@127.0.0.1",
    ) -> None:
        """``more``: further tables of the configuration. ``env``: settings by the environment."""
        self.directory = directory
        self.ports = {name: free_port() for name in ("tcp", "ws", "management", "dashboard")}
        self.name = name
        self.config = directory / "taipan.toml"
        settings = CONFIG.format(name=self.name, data_dir=directory / "data", **self.ports)
        self.config.write_text(settings + more, encoding="utf-8")
        self.env = {
            "TAIPAN__DASHBOARD__ENABLED": "true",
            "TAIPAN__MANAGEMENT__BIND": f"127.0.0.1:{self.ports['management']}",
            **(env or {}),
        }
        self.url = f"http://127.0.0.1:{self.ports['dashboard']}"
        self.username, self.password = "admin", ""
        self.process: NodeProcess | None = None
        self._api: ApiClient | None = None
        self._peers: list[Peer] = []

    async def start(self, timeout: float = 50.0) -> "DashboardNode":
        self.process = NodeProcess(self.config, env=self.env)
        await self.process.start(timeout)
        found = re.search(r"user admin password (\S+)", self.process.said)
        if found is not None:  # said at the first start only
            self.password = found[1]
        return self

    async def stop(self) -> None:
        await self.close_clients()
        if self._api is not None:
            await self._api.close()
            self._api = None
        await self.stop_process()

    async def close_clients(self) -> None:
        """Those of ``client``."""
        for peer in self._peers:
            await peer.close()
        self._peers.clear()

    async def end_sessions(self) -> None:
        """Those of ``client`` and of others, also where they would outlive their connections."""
        await self.close_clients()
        for row in (await self.api.get("/clients")).data:
            await self.api.delete(f"/clients/{segment(row['clientid'])}")

    async def stop_process(self) -> None:
        """The node alone: its clients see it go."""
        if self.process is not None:
            await self.process.stop()
            self.process = None

    @property
    def api(self) -> ApiClient:
        """As the administrator."""
        if self._api is None:
            self._api = ApiClient(self.url, app=(self.username, self.password))
        return self._api

    async def add_user(self, name: str, role: str) -> None:
        """A dashboard user with PASSWORD."""
        reply = await self.api.post("/users", {"username": name, "password": PASSWORD, "role": role, "tags": role})
        assert reply.code == 0, reply.text

    def address(self, transport: str = "tcp") -> Address:
        return Address("127.0.0.1", self.ports[transport], transport)

    async def client(self, client_id: str, version: int = 5, transport: str = "tcp", **connect: Any) -> Peer:
        """A connected MQTT client, closed with the node; ``connect`` as in ``Peer.connect``."""
        peer = Peer(self.address(transport), version)
        self._peers.append(peer)
        await peer.connect(client_id, **connect)
        return peer


class Watch:
    """What no page may do: errors on the console, exceptions, violations of the policy, requests to elsewhere.

    Answers of the API with a status of 4xx are told by Chromium as errors; they are none.
    """

    _REFUSED = re.compile(r"Failed to load resource: the server responded with a status of 4\d\d")
    _ANOTHER_AWAY = re.compile(r"Failed to load resource: the server responded with a status of 500")
    _AWAY = re.compile(r"Failed to load resource: net::ERR_|ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|502|503")

    def __init__(self, node: DashboardNode) -> None:
        self._hosts = {f"127.0.0.1:{port}" for name, port in node.ports.items() if name in ("dashboard", "ws")}
        self.seen: list[str] = []
        self.node_may_be_away = False
        """Set by a test that stops the node."""
        self.another_may_be_away = False
        """Set by a test that stops another node of the cluster: a question about it is answered with 500."""

    def allow(self, url: str) -> None:
        """A server that the pages may lead to."""
        self._hosts.add(urlsplit(url).netloc)

    def context(self, context: BrowserContext) -> None:
        context.on("console", self._console)
        context.on("weberror", lambda error: self.seen.append(f"exception: {error.error}"))
        context.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type != "error" or self._REFUSED.match(message.text):
            return
        if self.another_may_be_away and self._ANOTHER_AWAY.match(message.text):
            return
        if not (self.node_may_be_away and self._AWAY.search(message.text)):
            self.seen.append(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        found = urlsplit(request.url)
        if found.scheme not in ("blob", "data") and found.netloc not in self._hosts:
            self.seen.append(f"request to {request.url}")

    def check(self) -> None:
        seen, self.seen = self.seen, []
        assert not seen, "\n".join(seen)


# Also where the browser would say it on another page's console only.
_TELL_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`violation of ${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""


class Dashboard:
    """Opens pages of a node's dashboard. ``check`` at the end fails for what ``Watch`` has seen."""

    def __init__(self, browser: Browser, node: DashboardNode) -> None:
        self.browser = browser
        self.node = node
        self.watch = Watch(node)
        self._contexts: list[BrowserContext] = []
        self._users: set[str] = set()

    async def open(self, path: str = "/overview", role: str | None = "administrator", **options: Any) -> Page:
        """A page in a browser of its own, logged in as a user of this role; None: logged out. ``options`` as in
        ``Browser.new_context``, such as ``viewport``, ``color_scheme`` and ``locale``."""
        context = await self.context(role, **options)
        page = await context.new_page()
        await self.go(page, path)
        return page

    async def context(self, role: str | None = "administrator", **options: Any) -> BrowserContext:
        options.setdefault("viewport", {"width": 1280, "height": 900})
        options.setdefault("locale", "en-US")
        context = await self.browser.new_context(
            timezone_id="UTC", reduced_motion="reduce", accept_downloads=True, **options
        )
        context.set_default_timeout(patience(PATIENCE) * 1000)
        self._contexts.append(context)
        self.watch.context(context)
        await context.add_init_script(_TELL_VIOLATIONS)
        if role is not None:
            await self.log_in(context, role)
        return context

    async def log_in(self, context: BrowserContext, role: str) -> None:
        """By the API, as the form does it: a session's cookie in this browser."""
        name, password = self.node.username, self.node.password
        if role != "administrator":
            name, password = f"a-{role}", PASSWORD
            known = [user["username"] for user in (await self.node.api.get("/users")).data]
            if name not in known:
                await self.node.add_user(name, role)
        answer = await context.request.post(
            f"{self.node.url}/api/v4/auth",
            data={"username": name, "password": password},
            headers={"X-Taipan-Dashboard": "1"},
        )
        assert answer.ok, await answer.text()

    async def go(self, page: Page, path: str) -> None:
        """``path`` is what stands behind the ``#``."""
        await page.goto(f"{self.node.url}/#{path}")

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()
        self._contexts.clear()
        self.watch.check()


async def accessible(page: Page, widths: tuple[int, ...] = (1280, 390)) -> None:
    """No finding of axe on the page as it is, light and dark, at these widths."""
    before = page.viewport_size
    findings: list[str] = []
    for scheme in ("light", "dark"):
        for width in widths:
            await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            await page.set_viewport_size({"width": width, "height": 844})
            await page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn, 50)))")
            if not await page.evaluate("() => 'axe' in window"):
                # Evaluated by the browser's debugger, which the page's policy does not reach.
                await page.evaluate(AXE.read_text(encoding="utf-8"))
            found = await page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
            for violation in found["violations"]:
                for node in violation["nodes"]:
                    findings.append(
                        f"{scheme} {width}: {violation['id']}: {node['html'][:200]} {node['failureSummary']}"
                    )
            wide = await page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            if wide > 0:
                findings.append(f"{scheme} {width}: the page is {wide} pixels wider than its window")
    await page.emulate_media(color_scheme="light")
    if before is not None:
        await page.set_viewport_size(before)
    assert not findings, "\n".join(findings)


async def until(page: Page, expression: str, timeout: float = PATIENCE) -> None:
    """Until this expression of JavaScript is true. The page's policy forbids Playwright's own way of waiting."""
    async with asyncio.timeout(patience(timeout)):
        while not await page.evaluate(expression):
            await asyncio.sleep(0.05)
