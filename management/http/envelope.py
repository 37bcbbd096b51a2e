"""The envelope: every answer is a JSON object with ``code``, and with ``data`` and ``meta`` if present."""

import logging
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from taipan.broker.loop.cooperative_slice import CooperativeSlice

from ..operations.listing import Listing
from ..operations.node_listing import NodeListing, Page
from ..operations.refusal import (
    NO_CREDENTIALS,
    NO_USER,
    NOT_ONLINE,
    RPC_ERROR,
    UNKNOWN,
    WRONG_CREDENTIALS,
    Busy,
    Forbidden,
    Refusal,
)

logger = logging.getLogger(__name__)

Data = TypeVar("Data")

NOT_FOUND: Final = (UNKNOWN, NO_USER, NOT_ONLINE)
_STATUS: Final = {WRONG_CREDENTIALS: 401, NO_CREDENTIALS: 401, RPC_ERROR: 500, **dict.fromkeys(NOT_FOUND, 404)}
_SLICE: Final = 0.001
"""Maximum seconds of work on a long answer without a pause: short, because several may be sent at the same time."""
_CHUNK: Final = 65_536

encode: Final = msgspec.json.Encoder(enc_hook=str).encode


class Extra:
    """An answer with ``data``, unless it is ``None``, and further members next to it, such as ``code`` if it is not
    0."""

    def __init__(self, data: Any, **members: object) -> None:
        self.data = data
        self.members = members


def of_nodes(data: Data, missing: list[str]) -> Data | Extra:
    """Return an answer with ``data`` of several nodes; ``meta`` names those that did not answer, if any."""
    return Extra(data, meta={"missing_nodes": missing}) if missing else data


def status_of(code: int) -> int:
    """Return the HTTP status for a refusal's code; 400 unless the table in decisions specifies another."""
    return _STATUS.get(code, 400)


def _status(refusal: Refusal) -> int:
    if isinstance(refusal, Forbidden):
        return 403
    return 503 if isinstance(refusal, Busy) else status_of(refusal.code)


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=encode(body), status=status, content_type="application/json", headers=headers)


def refused(refusal: Refusal, always_200: bool, challenge: bool = True) -> web.Response:
    """``always_200``: as in EMQX 4.x for all errors except wrong credentials. ``challenge``: whether a browser may show
    its own dialog for credentials."""
    status = _status(refusal)
    if always_200 and status not in (401, 403):
        status = 200
    headers = {"WWW-Authenticate": 'Basic realm="taipan"'} if status == 401 and challenge else None
    body: dict[str, object] = {"code": refusal.code, "message": refusal.message}
    if refusal.line:
        body |= {"line": refusal.line, "column": refusal.column}
    return json_response(body, status, headers)


def path_of(request: web.Request) -> str:
    """Return the path for the log, without the query: a query may contain secrets, such as the code of a login."""
    return request.raw_path.partition("?")[0]


async def answer(request: web.Request, outcome: object) -> web.StreamResponse:
    """Convert the result of a handler to a response. The result is None, data, a listing, or already a response."""
    if isinstance(outcome, web.StreamResponse):
        return outcome
    if outcome is None:
        return json_response({"code": 0})
    if isinstance(outcome, Listing | NodeListing):
        return await _stream(request, outcome)
    if isinstance(outcome, Extra):
        data = {} if outcome.data is None else {"data": outcome.data}
        return json_response({"code": 0, **data, **outcome.members})
    return json_response({"code": 0, "data": outcome})


async def _stream(request: web.Request, listing: Page[Any]) -> web.StreamResponse:
    """Encode rows as they are found. A long page is sent in chunks, and other tasks run between them."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    if request.method == "HEAD":
        # Anything written after this head would be taken for the next answer.
        await response.prepare(request)
        return response
    try:
        return await _stream_into(response, request, listing)
    except ConnectionError:
        raise
    except Refusal as refusal:
        if not response.prepared or request.transport is None:
            raise
        logger.warning("api_listing_cut path=%s reason=%s", path_of(request), refusal.message)
        request.transport.abort()
        raise ConnectionResetError("the listing was interrupted") from None
    except Exception:
        if not response.prepared or request.transport is None:
            raise
        # Part of the answer has been sent: only closing the connection can show that it is incomplete.
        logger.exception("api_error method=%s path=%s", request.method, path_of(request))
        request.transport.abort()
        raise ConnectionResetError("the listing was interrupted") from None


async def _stream_into(response: web.StreamResponse, request: web.Request, listing: Page[object]) -> web.StreamResponse:
    pending = bytearray(b'{"data":[')
    comma = b""
    work = CooperativeSlice(_SLICE)
    async for row in listing:
        if row is not None:
            pending += comma
            pending += encode(row)
            comma = b","
        if work.over:
            if len(pending) >= _CHUNK:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(bytes(pending))
                pending.clear()
            await work.next()
    pending += b"]"
    meta: dict[str, object] = {}
    if listing.meta:
        meta = {"page": listing.page, "limit": listing.limit, "count": listing.count, "hasnext": listing.has_next}
    if isinstance(listing, NodeListing) and listing.missing:
        meta["missing_nodes"] = listing.missing
    if meta:
        pending += b',"meta":' + encode(meta)
    pending += b',"code":0}'
    if not response.prepared:
        return web.Response(body=bytes(pending), content_type="application/json")
    await response.write(bytes(pending))
    await response.write_eof()
    return response
