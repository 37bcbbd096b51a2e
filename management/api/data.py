"""/data: export what operators have stored as a file, and import it."""

import asyncio
import os
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from ..http.envelope import json_response, status_of
from ..http.reading import parse, read_octets
from ..http.routes import Call, OnDemand, Raw, Routes
from ..operations.backup.import_file import ImportRefused
from ..operations.refusal import MISSING, NOT_JSON, Refusal, wrong

routes = Routes("Data export and import")

_CHUNK: Final = 262_144


class ExportRecord(msgspec.Struct):
    """``size`` in bytes; ``created_at``: local time, ``YYYY-MM-DD HH:mm:ss``."""

    filename: str
    size: int
    created_at: str
    node: str


class ImportQuery(msgspec.Struct, kw_only=True):
    """``env``: a JSON object that is laid over the file's members. ``dry_run``: only look whether it could be done."""

    env: str | UnsetType = UNSET
    dry_run: bool = False


class Upload(msgspec.Struct, kw_only=True):
    """``file``: the text of an exported file."""

    filename: str | UnsetType = UNSET
    file: Any


@routes.post("/data/export", "Write an export file", reply=ExportRecord)
async def export_data(call: Call) -> Any:
    return await call.operations.backup.export_file()


@routes.get("/data/export", "Files that are there", reply=list[ExportRecord])
async def list_exports(call: Call) -> Any:
    return await call.operations.backup.listing()


@routes.delete("/data/export/{filename}", "Delete a file")
async def delete_export(call: Call) -> Any:
    await call.operations.backup.delete(call.path["filename"])


@routes.delete("/data/file/{filename}", "Delete a file, as EMQX 4.x has it")
async def delete_file(call: Call) -> Any:
    await call.operations.backup.delete(call.path["filename"])


@routes.get("/data/file/{filename}", "The contents of a file", reply=Raw({"application/json": {"type": "object"}}))
async def get_file(call: Call) -> Any:
    """As they are, without an envelope (specification, Data export and import)."""
    files = call.operations.backup.files
    opened, size = await asyncio.to_thread(files.open, files.place(call.path["filename"]))
    try:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(size)})
        await response.prepare(call.request)
        left = 0 if call.request.method == "HEAD" else size
        while left:
            octets = await asyncio.to_thread(os.read, opened, min(left, _CHUNK))
            if not octets:
                break  # cut off meanwhile; the connection closes short of what was announced
            await response.write(octets)
            left -= len(octets)
        await response.write_eof()
    finally:
        os.close(opened)
    return response


@routes.add("POST", "/data/file", "Keep a file", body=Upload, reply=ExportRecord, max_body="max_import")
async def upload_file(call: Call) -> Any:
    name = None if call.body.filename is UNSET else call.body.filename
    if not isinstance(call.body.file, str):
        raise Refusal(NOT_JSON, "file: expected the text of an exported file as a string")
    return await call.operations.backup.upload(name, call.body.file.encode())


@routes.add(
    "POST",
    "/data/import",
    "Import a file",
    query=ImportQuery,
    reply=OnDemand(dict[str, int | dict[str, int]]),
    max_body="max_import",
)
async def import_data(call: Call) -> Any:
    """The body is the file, a download of EMQX 4.x (``file``), or names one that is here (``filename``)."""
    settings = call.operations.settings
    octets = await read_octets(call.request, settings.max_import, "max_import", settings.read_timeout)
    if not octets.strip():
        raise Refusal(MISSING, "the body is missing: expected an exported file, or the filename of one")
    env: Any = {}
    if call.query.env is not UNSET:
        env = parse(call.query.env.encode())
        if not isinstance(env, dict):
            raise wrong("env", "expected a JSON object")
    try:
        counts = await call.operations.backup.import_octets(octets, env, call.query.dry_run)
    except ImportRefused as refusal:
        status = 200 if settings.error_status == "emqx" else status_of(refusal.code)
        return json_response({"code": refusal.code, "message": refusal.message, "data": refusal.rows}, status)
    return counts if call.query.dry_run else None
