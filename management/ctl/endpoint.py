"""POST /ctl: the commands of ``taipan-ctl`` over HTTP."""

from aiohttp import web

from ..http.routes import Call, Endpoints, Raw
from .execution import ControlRequest, carry_out
from .main import FRAMES_TYPE
from .output import Gone, Output

routes = Endpoints("Control command")


class _ResponseSink:
    """Collects frames for the body of an answer."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response
        self._pending = bytearray()

    def write(self, data: bytes) -> None:
        self._pending += data

    async def drain(self) -> None:
        if self._pending:
            data = bytes(self._pending)
            self._pending.clear()
            await self._response.write(data)


@routes.post(
    "/ctl",
    "Do a command of taipan-ctl",
    body=ControlRequest,
    reply=Raw({FRAMES_TYPE: {"type": "string", "format": "binary"}}),
)
async def run_command(call: Call) -> web.StreamResponse:
    """The answer consists of frames: one byte for the kind, four for the length, then the content. `o` is output, `e`
    error output, `f` a piece of a file, `x` the exit status in digits, which is the last frame."""
    response = web.StreamResponse(
        headers={"Content-Type": FRAMES_TYPE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )
    await response.prepare(call.request)
    try:
        await carry_out(call.operations, call.body, Output(_ResponseSink(response)), call.caller)
        await response.write_eof()
    except Gone as gone:
        raise ConnectionResetError(str(gone)) from None
    return response
