"""The command data: export the data that operators have stored to a file, and import it."""

from collections.abc import Iterator
from typing import Any

import msgspec

from ..operations.backup.backup import DryRun
from ..operations.backup.import_file import ImportRefused, UnsupportedVersion
from ..operations.loss import LossRecord
from ..operations.refusal import NOT_JSON, UNKNOWN, WRONG, Refusal
from .command import NOT_FOUND, OK, CommandCall, CommandResult, Commands, telling, word

commands = Commands()

_MAX_TOLD = 10


@commands.add("data export", "Export users, access rules, bans, applications, rules and resources")
async def export_data(call: CommandCall) -> CommandResult:
    record = await call.operations.backup.export_file()
    path = (call.operations.backup.files.path / record.filename).absolute()
    return CommandResult(record, f"The emqx data has been successfully exported to {path}.")


@commands.add(
    "data import <File> [--env <JSON>] [--dry-run <Flag>]",
    "Import a file, given by its absolute path, completely or not at all",
)
async def import_data(call: CommandCall) -> CommandResult:
    path = call["File"]
    call.only_on_the_machine("POST /api/v4/data/import with the file as its body")
    dry_run = call.get("Flag") is not None and call.flag("Flag")
    with telling(_not_imported):
        told = await call.operations.backup.import_path(path, _env(call), DryRun(dry_run))
    return CommandResult(told, _dry_run_lines if dry_run else _import_lines)


def _env(call: CommandCall) -> Any:
    text = call.get("JSON")
    if text is None:
        return {}
    try:
        env = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Refusal(WRONG, f"JSON: is not JSON: {error}") from None
    if not isinstance(env, dict):
        raise Refusal(WRONG, "JSON: expected a JSON object")
    return env


def _not_imported(refusal: Refusal) -> str | None:
    if isinstance(refusal, ImportRefused):
        return _wrong_records(refusal)
    if isinstance(refusal, UnsupportedVersion):
        return "its version is not supported"
    return {NOT_JSON: "is not JSON", UNKNOWN: NOT_FOUND}.get(refusal.code)


def _wrong_records(refusal: ImportRefused) -> str:
    """Return one line with the first few of the invalid records."""
    places = [
        f"{row['section']}[{row['index']}]" + (f".{row['key']}" if row["key"] else "") + f": {row['what']}"
        for row in refusal.rows[:_MAX_TOLD]
    ]
    return f"records that are wrong: {refusal.count}: {'; '.join(places)}"


def _dry_run_lines(told: dict[str, Any]) -> Iterator[str]:
    yield "Nothing is imported; this would be:"
    for section, count in told.items():
        if isinstance(count, int) or section == "carried":
            yield f"{section}: {count}"
    for kind, actions in told["totals"].items():
        yield f"{kind}: {', '.join(f'{action} {count}' for action, count in actions.items() if count)}"
    yield from _told_lines(told)


def _import_lines(told: dict[str, Any] | None) -> Iterator[str]:
    yield "The emqx data has been imported successfully."
    yield from _told_lines(told or {})


def _told_lines(told: dict[str, Any]) -> Iterator[str]:
    for app_id in told.get("replaced_apps", ()):
        yield f"Replaced application: {app_id}"
    for name in told.get("replaced_users", ()):
        yield f"Replaced login of the dashboard: {name}"
    for left in told.get("left_out", ()):
        yield f"Left out: {left.section} {left.id}: {left.what}"
    for row in told.get("disabled", ()):
        yield f"Not running: {row['section']}[{row['index']}] {row['id']}: {row['what']}"
    for idle in told.get("without_effect", ()):
        yield f"Without effect: {idle.section} {idle.id}: {idle.what}"


@commands.add("backup create <File>", "Back up the whole store to a local file while the node runs")
def create_backup(call: CommandCall) -> CommandResult:
    record, pieces = call.operations.store_backup.begin()
    return CommandResult(record, lambda row: f"Backup of {row.node} {row.version}: {row.size} bytes", pieces)


commands.add_here("backup verify <File>", "Check that a backup is intact")
commands.add_here("backup restore <File> [--data-dir <Dir>] [--force]", "Restore a backup into a data directory")


@commands.add("data loss", "Show what was missing from the store at startup")
def show_loss(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.loss.record(), _loss_lines)


@commands.add("data accept-loss", "Accept clients although users, rules or bans are lost")
async def accept_loss(call: CommandCall) -> CommandResult:
    return CommandResult(await call.operations.loss.accept(), OK)


def _loss_lines(loss: LossRecord) -> Iterator[str]:
    if loss.batches is not None:
        yield "Lost batches: {} to {}".format(*loss.batches)
    if loss.access:
        yield f"Access rows lost: {loss.access}"
        yield f"Accepted: {word(loss.accepted)}"
    if loss.batches is None and not loss.access:
        yield "Nothing is lost."
