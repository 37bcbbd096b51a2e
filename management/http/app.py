"""The web application: it handles every request, from credentials to envelope."""

import inspect
import logging
import weakref
from collections.abc import Awaitable, Iterable
from typing import Final, Protocol

from aiohttp import web

from ..operations.caller import NOBODY, Caller, is_at_least
from ..operations.listing import Listing, PageQuery
from ..operations.live import LiveStream
from ..operations.node_calls import NodeDoesNotAnswer
from ..operations.node_listing import NodeListing
from ..operations.operations import Operations
from ..operations.refusal import UNKNOWN, WRONG, Forbidden, Refusal, not_found
from .credentials import WrongCredentials
from .cross_site import CrossSite
from .envelope import Extra, answer, json_response, path_of, refused
from .event_stream import send_events
from .protocol import SERVER, connection_of
from .reading import read_body, read_chunks, read_query
from .routes import PREFIXES, Call, Endpoint, Lenient, Raw, RouteTable, UnparsedBody, split_path
from .session_cookie import HEADER

logger = logging.getLogger(__name__)

_NO_CHANGES: Final = frozenset(
    {"/auth", "/ctl", "/access/explain", "/access/try_login", "/mqtt/publish", "/mqtt/publish_batch"}
)
"""Endpoints that are not recorded in the audit: they change nothing that stays, or record it themselves."""
_OPENID: Final = ["auth", "openid"]
"""The beginning of the paths that a browser needs to log in by OpenID Connect."""
SAY_EVERY: Final = 10.0
"""Seconds between two log lines about one caller and one endpoint: a caller with few rights must not fill the log."""
_MAX_SAID: Final = 10_000
MAX_BODY_BEFORE_LOGIN: Final = 8_192
"""Maximum size of a body without credentials, such as the body of a login."""


class Gate(Protocol):
    """Access control of a server. ``has_login``: whether callers without credentials may request a session with
    ``POST /auth``, or by OpenID Connect."""

    @property
    def has_login(self) -> bool: ...

    def check(self, request: web.Request) -> Caller | Awaitable[Caller]:
        """Return the caller. Raises Refusal."""
        ...


class PageFiles(Protocol):
    """The files of the dashboard."""

    def answer(self, request: web.Request, segments: list[str]) -> web.Response | None:
        """Return the answer; ``None`` if the path is not one of these files."""
        ...


class Application:
    """Answers requests under both prefixes and the few without a prefix."""

    def __init__(
        self,
        operations: Operations,
        gate: Gate,
        cross_site: CrossSite,
        routes: Iterable[Endpoint],
        root_routes: Iterable[Endpoint] = (),
        pages: PageFiles | None = None,
    ) -> None:
        """``root_routes``: routes without a prefix: ``/status``, ``/metrics``."""
        self.operations = operations
        self._gate = gate
        self._cross_site = cross_site
        self._pages = pages
        self._table = RouteTable(routes)
        self._root = RouteTable(root_routes)
        # (caller, method, endpoint) -> when the next refusal of these is logged
        self._said: dict[tuple[str, str, str], float] = {}

    def web_application(self) -> web.Application:
        """The result refers to this object weakly, because aiohttp keeps the last 1024 applications that have a
        middleware."""
        ours: Application = weakref.proxy(self)

        async def receive(request: web.Request) -> web.StreamResponse:
            return await ours.receive(request)

        @web.middleware
        async def receive_any(request: web.Request, handler: object) -> web.StreamResponse:
            """Also receive requests whose target is not a path, which aiohttp's router does not know."""
            return await ours.receive(request)

        # Each endpoint limits bodies, in ``reading``.
        application = web.Application(client_max_size=0, middlewares=[receive_any])
        application.on_response_prepare.append(_sign)
        application.router.add_route("*", r"/{path:[\s\S]*}", receive, expect_handler=_expect)
        return application

    async def receive(self, request: web.Request) -> web.StreamResponse:
        """Handle a request, and measure how long its connection is busy with it."""
        connection = connection_of(request)
        connection.request_begins()
        try:
            return await self.handle(request)
        finally:
            connection.request_answered()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handle a request. The answer is always JSON with a code."""
        try:
            return await self._handle(request)
        except WrongCredentials as wrong:
            return await self._slowly(request, wrong)
        except Refusal as refusal:
            return self._refused(request, refusal)
        except (ConnectionError, web.HTTPException):
            raise
        except Exception:
            # A bug: the log has the traceback, the answer does not.
            logger.exception("api_error method=%s path=%s", request.method, path_of(request))
            return json_response({"code": UNKNOWN, "message": "internal error; see the log"}, 500)

    def _refused(self, request: web.Request, refusal: Refusal) -> web.Response:
        # The page itself asks for a password.
        challenge = HEADER not in request.headers
        return refused(refusal, self.operations.settings.error_status == "emqx", challenge)

    async def _slowly(self, request: web.Request, wrong: WrongCredentials) -> web.Response:
        """Answer after a delay; the next attempt then needs another connection."""
        response = self._refused(request, wrong)
        if wrong.wait:
            await connection_of(request).wait(wrong.wait)
            response.force_close()
        return response

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self._cross_site.check(request)
        segments = split_path(request.raw_path)
        table, rest = self._root, segments
        for prefix in PREFIXES:
            if tuple(segments[: len(prefix)]) == prefix:
                table, rest = self._table, segments[len(prefix) :]
                break
        else:
            page = None if self._pages is None else self._pages.answer(request, segments)
            if page is not None:
                return page
            if not segments or self._root.find("GET", segments) is None:
                raise not_found("path", request.path[:256])
        caller = NOBODY
        if (len(rest) != 1 and rest[:2] != _OPENID) or not self._is_public(request.method, rest, table is self._root):
            found_caller = self._gate.check(request)
            caller = found_caller if isinstance(found_caller, Caller) else await found_caller
            connection = connection_of(request)
            if not connection.is_authenticated:
                connection.authenticated()
        method = "GET" if request.method == "HEAD" else request.method
        found = table.find(method, rest)
        if found is None:
            raise Refusal(UNKNOWN, f"no endpoint {request.method} {request.path[:256]}")
        endpoint, variables = found
        scopes = caller.scopes
        if scopes is None:
            if caller is not NOBODY and not is_at_least(caller.role, endpoint.role):
                self._forbid(caller, request, endpoint)
        elif endpoint.scope not in scopes and "all" not in scopes:
            self._forbid_application(caller, scopes, request, endpoint)
        if "node" in variables:
            self.operations.calls.check(variables["node"])
        call = Call(request, self.operations, variables, caller=caller)
        await self._read(endpoint, call)
        recorded = method != "GET" and is_recorded(endpoint, call)
        before = await self._before(table, rest, call) if recorded else None
        try:
            outcome = endpoint.handler(call)
            if inspect.isawaitable(outcome):
                outcome = await outcome
        except NodeDoesNotAnswer:
            if recorded:  # the others have made the change, and this one may have
                await self._record(endpoint, call, before, None)
            raise
        if isinstance(outcome, LiveStream):
            return await send_events(request, outcome, caller.ended)
        if recorded:
            await self._record(endpoint, call, before, outcome)
        response = await answer(request, outcome)
        if method != "GET" and caller.is_user and endpoint.path != "/auth":
            self._log_change(caller, request, response.status)
        return response

    def _forbid(self, caller: Caller, request: web.Request, endpoint: Endpoint) -> None:
        self.operations.server.metrics.refusals.add("dashboard_role")
        if self._is_to_say(caller, endpoint):
            logger.warning(
                "dashboard_request_refused username=%s role=%s address=%s method=%s path=%s",
                caller.name,
                caller.role,
                caller.address,
                request.method,
                request.path,
            )
        raise Forbidden(f"{caller.name} has the role {caller.role}; this request requires the role {endpoint.role}")

    def _forbid_application(
        self, caller: Caller, scopes: frozenset[str], request: web.Request, endpoint: Endpoint
    ) -> None:
        self.operations.server.metrics.refusals.add("api_scope")
        names = ",".join(sorted(scopes)) or "-"
        if self._is_to_say(caller, endpoint):
            logger.warning(
                "api_request_refused app_id=%s scopes=%s address=%s method=%s path=%s",
                caller.name,
                names,
                caller.address,
                request.method,
                request.path,
            )
        raise Forbidden(f"application {caller.name} has the scope {names}; this request requires {endpoint.scope}")

    def _is_to_say(self, caller: Caller, endpoint: Endpoint) -> bool:
        """Return whether the log is to have a line about this refusal."""
        now = self.operations.server.clock.now()
        about = (caller.name, endpoint.method, endpoint.path)
        if now < self._said.get(about, now):
            return False
        if len(self._said) >= _MAX_SAID:
            self._said.clear()
        self._said[about] = now + SAY_EVERY
        return True

    def _log_change(self, caller: Caller, request: web.Request, status: int) -> None:
        self.operations.dashboard_sessions.changes += 1
        logger.info(
            "dashboard_change username=%s address=%s method=%s path=%s status=%s",
            caller.name,
            caller.address,
            request.method,
            request.path,
            status,
        )

    def _is_public(self, method: str, rest: list[str], at_root: bool) -> bool:
        settings, segment = self.operations.settings, rest[0]
        if rest[:2] == _OPENID and method in ("GET", "HEAD") and not at_root:
            return self._gate.has_login
        if segment == "auth" and method == "POST" and not at_root:
            return self._gate.has_login
        if at_root and segment == "status":
            return True
        if segment == "openapi.json" and not at_root:
            return settings.public_openapi
        return settings.public_metrics and segment == ("metrics" if at_root else "emqx_prometheus")

    async def _before(self, table: RouteTable, rest: list[str], changing: Call) -> object:
        """Return the object that a request is about to change, as GET of the same path returns it; None: there is no
        such GET, or no object."""
        found = table.find("GET", rest) if changing.path else None
        # An endpoint without the envelope, such as a download, writes its own answer to the connection.
        if found is None or isinstance(found[0].reply, Raw):
            return None
        if found[0].query is not None and not issubclass(found[0].query, PageQuery):
            return None
        endpoint, variables = found
        call = Call(changing.request, self.operations, variables, caller=changing.caller)
        if endpoint.query is not None:
            call.query = endpoint.query()
        try:
            outcome = endpoint.handler(call)
            if inspect.isawaitable(outcome):
                outcome = await outcome
        except Refusal:
            return None
        return None if isinstance(outcome, Listing | NodeListing | Extra | web.StreamResponse) else outcome

    async def _record(self, endpoint: Endpoint, call: Call, before: object, outcome: object) -> None:
        """Record a change in the audit; return when it is on disk. Of a file, which may have any secrets and any size,
        the audit has the answer."""
        after = call.query if call.body is None else call.body
        if isinstance(endpoint.body, UnparsedBody):
            if isinstance(outcome, web.StreamResponse):
                return  # the file is refused, and nothing has changed
            after = outcome
        if call.audited is not None:
            before, after = call.audited
        await self.operations.audit.record(
            "dashboard" if call.caller.is_user else "api",
            call.caller.name,
            call.caller.address or (call.request.remote or ""),
            f"{endpoint.method} {endpoint.path}",
            call.request.path,
            before,
            after,
        )

    async def _read(self, endpoint: Endpoint, call: Call) -> None:
        """Read the query and the body of a request."""
        request, caller = call.request, call.caller
        if endpoint.query is not None:
            call.query = read_query(request, endpoint.query)
        if endpoint.body is not None:
            most: int = getattr(self.operations.settings, endpoint.max_body)
            setting = f"management.{endpoint.max_body}"
            if caller is NOBODY and most > MAX_BODY_BEFORE_LOGIN:
                most, setting = MAX_BODY_BEFORE_LOGIN, ""
            timeout = self.operations.settings.read_timeout
            if isinstance(endpoint.body, UnparsedBody):
                call.body = await read_chunks(request, most, setting, timeout)
            else:
                kind = endpoint.body
                if isinstance(kind, Lenient):
                    kind = kind.of(self.operations.settings.error_status)
                call.body = await read_body(request, kind, most, setting, timeout)


def is_recorded(endpoint: Endpoint, call: Call) -> bool:
    """Return whether a request that is not GET is recorded in the audit. The endpoint decides this; an unknown
    parameter has no influence. Tests of rules or resources, and dry runs, are not recorded."""
    places = (call.body, getattr(call, "query", None))
    given = getattr(call.body, "test", False), *(getattr(each, "dry_run", False) for each in places)
    return endpoint.path not in _NO_CHANGES and True not in given


async def _sign(_: web.Request, response: web.StreamResponse) -> None:
    """Set headers: the server's name without versions, which would help attackers, and headers that forbid storing the
    answer or guessing its type."""
    response.headers["Server"] = SERVER
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """Allow a client that waits before it sends its body to send it; no other expectation is supported."""
    expected = request.headers.get("Expect", "")
    if expected.lower() != "100-continue":
        return refused(Refusal(WRONG, f"unsupported Expect: {expected[:100]}"), always_200=False)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # That was not part of the answer.
    request.writer.output_size = 0
    return None
