"""The web application: every request passes it, from credentials to envelope."""

import inspect
import logging
from collections.abc import Iterable
from functools import partial

from aiohttp import web

from ..operations.live import LiveStream
from ..operations.operations import Operations
from ..operations.refusal import UNKNOWN, WRONG, Refusal, not_found
from .credentials import CredentialsCheck, WrongCredentials
from .cross_site import CrossSite
from .envelope import answer, json_response, refused
from .event_stream import send_events
from .protocol import SERVER, connection_of
from .reading import read_body, read_chunks, read_query
from .routes import PREFIXES, Call, Endpoint, Lenient, RouteTable, UnparsedBody, split_path

logger = logging.getLogger(__name__)


class Application:
    """Answers requests under both prefixes and the few beside them."""

    def __init__(
        self,
        operations: Operations,
        routes: Iterable[Endpoint],
        root_routes: Iterable[Endpoint] = (),
    ) -> None:
        """``root_routes`` stand beside the prefixes: ``/status``, ``/metrics``."""
        self.operations = operations
        server = operations.server
        self.credentials = CredentialsCheck(operations.apps, server.clock, server.metrics.refusals)
        self.cross_site = CrossSite(operations.settings, server.clock, server.metrics.refusals)
        self._table = RouteTable(routes)
        self._root = RouteTable(root_routes)

    def web_application(self) -> web.Application:
        # Bodies are bounded endpoint by endpoint, in ``reading``.
        application = web.Application(client_max_size=0, middlewares=[self._receive])
        application.on_response_prepare.append(_sign)
        application.router.add_route("*", r"/{path:[\s\S]*}", self.handle, expect_handler=_expect)
        return application

    @web.middleware
    async def _receive(self, request: web.Request, handler: object) -> web.StreamResponse:
        """Every request, those too whose target is no path and that aiohttp's router does not know."""
        connection = connection_of(request)
        connection.request_begins()
        try:
            return await self.handle(request)
        finally:
            connection.request_answered()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Every request. Whatever happens, the answer is JSON with a code."""
        try:
            return await self._handle(request)
        except WrongCredentials as wrong:
            return await self._slowly(request, wrong)
        except Refusal as refusal:
            return self._refused(refusal)
        except (ConnectionError, web.HTTPException):
            raise
        except Exception:
            # A bug: the log has the trace, the answer does not.
            logger.exception("api_error method=%s path=%s", request.method, request.raw_path)
            return json_response({"code": UNKNOWN, "message": "internal error; the log tells more"}, 500)

    def _refused(self, refusal: Refusal) -> web.Response:
        return refused(refusal, self.operations.settings.error_status == "emqx")

    async def _slowly(self, request: web.Request, wrong: WrongCredentials) -> web.Response:
        """After a while; the next guess then wants another connection."""
        response = self._refused(wrong)
        if wrong.wait:
            await connection_of(request).wait(wrong.wait)
            response.force_close()
        return response

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.cross_site.check(request)
        segments = split_path(request.raw_path)
        table, rest = self._root, segments
        for prefix in PREFIXES:
            if tuple(segments[: len(prefix)]) == prefix:
                table, rest = self._table, segments[len(prefix) :]
                break
        else:
            if not segments or self._root.find("GET", segments) is None:
                raise not_found("path", request.path[:256])
        if len(rest) != 1 or not self._is_public(rest[0], table is self._root):
            self.credentials.check(request)
            connection = connection_of(request)
            if not connection.is_authenticated:
                connection.authenticated()
        method = "GET" if request.method == "HEAD" else request.method
        found = table.find(method, rest)
        if found is None:
            raise Refusal(UNKNOWN, f"no endpoint {request.method} {request.path[:256]}")
        endpoint, variables = found
        outcome = await self._call(endpoint, variables, request)
        if isinstance(outcome, LiveStream):
            return await send_events(request, outcome, partial(self.credentials.still_allowed, request))
        return await answer(request, outcome)

    def _is_public(self, segment: str, at_root: bool) -> bool:
        settings = self.operations.settings
        if at_root and segment == "status":
            return True
        if segment == "openapi.json" and not at_root:
            return settings.public_openapi
        return settings.public_metrics and segment == ("metrics" if at_root else "emqx_prometheus")

    async def _call(self, endpoint: Endpoint, variables: dict[str, str], request: web.Request) -> object:
        if "node" in variables:
            self.operations.calls.check(variables["node"])
        call = Call(request, self.operations, variables)
        if endpoint.query is not None:
            call.query = read_query(request, endpoint.query)
        if endpoint.body is not None:
            most: int = getattr(self.operations.settings, endpoint.max_body)
            timeout = self.operations.settings.read_timeout
            if isinstance(endpoint.body, UnparsedBody):
                call.body = await read_chunks(request, most, endpoint.max_body, timeout)
            else:
                kind = endpoint.body
                if isinstance(kind, Lenient):
                    kind = kind.of(self.operations.settings.error_status)
                call.body = await read_body(request, kind, most, endpoint.max_body, timeout)
        outcome = endpoint.handler(call)
        if inspect.isawaitable(outcome):
            outcome = await outcome
        return outcome


async def _sign(_: web.Request, response: web.StreamResponse) -> None:
    """Who answers; not in which versions, which would tell what can be attacked."""
    response.headers["Server"] = SERVER


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """A client that waits before it sends its body may send it; nothing else can be expected."""
    expected = request.headers.get("Expect", "")
    if expected.lower() != "100-continue":
        return refused(Refusal(WRONG, f"nothing is known of Expect: {expected[:100]}"), always_200=False)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # That was no part of the answer.
    request.writer.output_size = 0
    return None
