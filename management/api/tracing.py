"""/trace: the activity of a client, a topic or an address, in a separate file."""

from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from taipan.broker.extensions.tracing import Kind

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes, Raw
from ..operations.times import from_rfc3339
from ..operations.tracing import TraceRecord

routes = Endpoints("Traces")


class NewTrace(msgspec.Struct):
    """``start_at`` and ``end_at`` as RFC 3339; by default, ten minutes from now."""

    name: str
    type: Kind
    clientid: str | None = None
    topic: str | None = None
    ip_address: str | None = None
    start_at: str | None = None
    end_at: str | None = None


class Stopped(msgspec.Struct):
    """The trace, which is no longer active."""

    name: str
    enable: bool


class LogQuery(msgspec.Struct):
    """A piece of the trace file, from the node that receives the request or from ``node``."""

    position: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    bytes: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] = 1000
    node: str | None = None


@routes.get("/trace", "The traces", reply=OfNodes(list[TraceRecord]))
async def list_trace(call: Call) -> list[TraceRecord] | Extra:
    return of_nodes(*await call.operations.tracing.listing())


@routes.post("/trace", "Start a trace", body=NewTrace, reply=TraceRecord)
async def create_trace(call: Call) -> TraceRecord:
    new: NewTrace = call.body
    return await call.operations.tracing.create(
        new.name,
        new.type,
        getattr(new, new.type),
        from_rfc3339("start_at", new.start_at) if new.start_at is not None else None,
        from_rfc3339("end_at", new.end_at) if new.end_at is not None else None,
    )


@routes.delete("/trace", "Delete all traces")
async def clear_traces(call: Call) -> None:
    await call.operations.tracing.clear()


@routes.delete("/trace/{name}", "Delete a trace and its file")
async def delete_trace(call: Call) -> None:
    await call.operations.tracing.delete(call.path["name"])


@routes.put("/trace/{name}/stop", "Stop a trace", reply=Stopped)
async def disable_trace(call: Call) -> Stopped:
    await call.operations.tracing.stop(call.path["name"])
    return Stopped(call.path["name"], False)


@routes.get(
    "/trace/{name}/download",
    "A trace file, zipped",
    reply=Raw({"application/zip": {"type": "string", "format": "binary"}}),
)
async def download_zip_log(call: Call) -> web.Response:
    name = call.path["name"]
    archive = await call.operations.tracing.archive(name)
    disposition = f'attachment; filename="{name}.zip"'
    return web.Response(body=archive, content_type="application/zip", headers={"Content-Disposition": disposition})


@routes.get("/trace/{name}/log", "Part of a trace file", query=LogQuery, reply=str)
async def stream_log_file(call: Call) -> Extra:
    query: LogQuery = call.query
    text, position = await call.operations.tracing.log(call.path["name"], query.position, query.bytes, query.node)
    return Extra(text, meta={"position": position, "bytes": query.bytes})
