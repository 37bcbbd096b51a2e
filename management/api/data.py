"""/data: export the data that operators have stored to a file, and import it."""

from contextlib import aclosing
from typing import Any

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from ..http.envelope import Extra, json_response, of_nodes, status_of
from ..http.reading import parse
from ..http.routes import Call, Endpoints, OfNodes, OnDemand, Raw, UnparsedBody
from ..operations.backup.backup import Asker, DryRun
from ..operations.backup.documents import is_blank
from ..operations.backup.files import ExportRecord
from ..operations.backup.import_changes import Change
from ..operations.backup.import_file import ImportRefused, LeftOut, WithoutEffect
from ..operations.backup.json_document import JsonObject
from ..operations.listing import PageQuery, offset_of
from ..operations.loss import LossRecord
from ..operations.refusal import MISSING, Refusal, wrong

routes = Endpoints("Data export and import")


class ImportQuery(PageQuery, kw_only=True):
    """Query of an import. ``env``: a JSON object whose members override those of the file. ``dry_run``: only report
    the changes; the paging applies to its ``records``. ``replace_own_login``: the login that runs the import also
    gets the file's secret."""

    env: str | UnsetType = UNSET
    dry_run: bool = False
    replace_own_login: bool = False


class Upload(msgspec.Struct, kw_only=True):
    """``file``: the text of an exported file. ``filename``: by default, the node generates a name."""

    filename: str | UnsetType = UNSET
    file: str


class ImportFile(msgspec.Struct, kw_only=True):
    """An exported file, a download from EMQX 4.x (``file``), or the ``filename`` of a file on this node.

    A file has its ``version`` and sections, which are arrays of objects; members of any other name are accepted as
    well."""

    version: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET
    file: str | UnsetType = UNSET
    env: JsonObject | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET
    replace_own_login: bool | UnsetType = UNSET
    resources: list[JsonObject] | UnsetType = UNSET
    rules: list[JsonObject] | UnsetType = UNSET
    auth_mnesia: list[JsonObject] | UnsetType = UNSET
    acl_mnesia: list[JsonObject] | UnsetType = UNSET
    blacklist: list[JsonObject] | UnsetType = UNSET
    apps: list[JsonObject] | UnsetType = UNSET
    users: list[JsonObject] | UnsetType = UNSET
    retained: list[JsonObject] | UnsetType = UNSET
    alarm_targets: list[JsonObject] | UnsetType = UNSET
    alarm_silences: list[JsonObject] | UnsetType = UNSET
    alarm_thresholds: list[JsonObject] | UnsetType = UNSET


class DisabledRecord(msgspec.Struct, kw_only=True):
    """A record that was imported but is not active: its position in the section, and the reason."""

    section: str
    index: int
    id: str
    what: str


class ImportRecord(msgspec.Struct, kw_only=True):
    """``replaced_apps``, ``replaced_users``: existing applications and dashboard users that now have the file's secret.
    ``left_out``: records that were not imported. ``disabled``: resources that cannot be used as they are.
    ``without_effect``: records that are kept only for the next export, and ``carried`` the number of them by section. A
    dry run also returns the number of records in each section, the change that each record would make, and the number
    of changes by section and action (``totals``)."""

    replaced_apps: list[str]
    replaced_users: list[str] | UnsetType = UNSET
    left_out: list[LeftOut] | UnsetType = UNSET
    disabled: list[DisabledRecord] | UnsetType = UNSET
    without_effect: list[WithoutEffect] | UnsetType = UNSET
    resources: int | UnsetType = UNSET
    rules: int | UnsetType = UNSET
    auth_mnesia: int | UnsetType = UNSET
    acl_mnesia: int | UnsetType = UNSET
    blacklist: int | UnsetType = UNSET
    apps: int | UnsetType = UNSET
    users: int | UnsetType = UNSET
    retained: int | UnsetType = UNSET
    alarm_targets: int | UnsetType = UNSET
    alarm_silences: int | UnsetType = UNSET
    alarm_thresholds: int | UnsetType = UNSET
    carried: dict[str, int] | UnsetType = UNSET
    records: list[Change] | UnsetType = UNSET
    totals: dict[str, dict[str, int]] | UnsetType = UNSET


@routes.get("/data/loss", "Records missing from the store at startup", reply=LossRecord)
async def get_loss(call: Call) -> LossRecord:
    return call.operations.loss.record()


@routes.post("/data/loss/accept", "Accept clients although access records are lost", reply=LossRecord)
async def accept_loss(call: Call) -> LossRecord:
    return await call.operations.loss.accept()


@routes.post("/data/export", "Write an export file", reply=ExportRecord)
async def export_data(call: Call) -> ExportRecord:
    return await call.operations.backup.export_file()


@routes.get("/data/export", "Export files", reply=OfNodes(list[ExportRecord]))
async def list_exports(call: Call) -> list[ExportRecord] | Extra:
    return of_nodes(*await call.operations.backup.listing())


@routes.delete("/data/export/{filename}", "Delete a file")
async def delete_export(call: Call) -> None:
    await call.operations.backup.delete(call.path["filename"])


@routes.delete("/data/file/{filename}", "Delete a file, under the EMQX 4.x path")
async def delete_file(call: Call) -> None:
    await call.operations.backup.delete(call.path["filename"])


@routes.get(
    "/data/file/{filename}",
    "The contents of a file",
    reply=Raw({"application/json": {"type": "object"}}),
)
async def get_file(call: Call) -> web.StreamResponse:
    """The file is sent unchanged, without an envelope (specification, Data export and import)."""
    backup, name = call.operations.backup, call.path["filename"]
    node, size = await backup.find(name)
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(size)})
    await response.prepare(call.request)
    if call.request.method != "HEAD":
        # If the file is truncated in the meantime, the answer is shorter than announced.
        async with aclosing(backup.pieces(node, name, size)) as pieces:
            async for piece in pieces:
                await response.write(piece)
    await response.write_eof()
    return response


@routes.add("POST", "/data/file", "Upload a file", body=UnparsedBody(Upload), reply=ExportRecord, max_body="max_import")
async def upload_file(call: Call) -> ExportRecord:
    return await call.operations.backup.upload(call.body, call.request.rel_url.query)


@routes.add(
    "POST",
    "/data/import",
    "Import a file",
    query=ImportQuery,
    body=UnparsedBody(ImportFile),
    reply=OnDemand(ImportRecord),
    max_body="max_import",
)
async def import_data(call: Call) -> web.Response | JsonObject | None:
    """The body is the file, a download from EMQX 4.x (`file`), or the name of a file on the node (`filename`)."""
    if is_blank(call.body):
        raise Refusal(MISSING, "the body is missing: expected an exported file, or the filename of one")
    env: Any = {}
    if call.query.env is not UNSET:
        env = parse(call.query.env.encode())
        if not isinstance(env, dict):
            raise wrong("env", "expected a JSON object")
    try:
        limit = call.query.rows(call.operations.settings.max_row_limit)
        dry_run = DryRun(call.query.dry_run, offset_of(call.query.page, limit), limit)
        asker = Asker(call.caller.name if call.caller.is_user else "", call.query.replace_own_login)
        return await call.operations.backup.import_body(call.body, env, dry_run, asker)
    except ImportRefused as refusal:
        settings = call.operations.settings
        status = 200 if settings.error_status == "emqx" else status_of(refusal.code)
        return json_response({"code": refusal.code, "message": refusal.message, "data": refusal.rows}, status)
