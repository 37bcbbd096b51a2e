"""``taipan migrate``: reads the data of another broker, writes a configuration and a store, and prints a report."""

import os
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from .fitting import fit
from .output import CONFIGURATION, Migration, check_target, write
from .report import CannotMigrate, Outcome, ReportLine

REFUSED: Final = 2
"""The exit status if nothing is written."""


class _Told(msgspec.Struct):
    """The report as JSON. ``counts``: number of lines by outcome."""

    written: str | None
    seconds: float
    counts: dict[Outcome, int]
    lines: list[ReportLine]
    error: str = ""


def run(source: str, path: Path, target: Path, as_json: bool) -> int:
    """Return the exit status: 0, or 2 if nothing was written."""
    began = time.perf_counter()
    migration = Migration(str(path))
    error = ""
    try:
        check_target(target)
        migration = _read(source, path)
        if not migration.report.failed:
            fit(migration)
        if not migration.report.failed:
            write(migration, target)
        else:
            error = "nothing was written: correct the errors first"
    except CannotMigrate as refusal:
        error = str(refusal)
    report = migration.report
    counts: dict[Outcome, int] = {}
    for entry in report.entries:
        counts[entry.outcome] = counts.get(entry.outcome, 0) + 1
    seconds = round(time.perf_counter() - began, 3)
    if as_json:
        told = _Told(None if error else str(target), seconds, counts, report.entries, error)
        _print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
        return REFUSED if error else 0
    shown = report.of("wrong") if report.failed else report.entries
    _print("\n".join(report.lines(shown)))
    if error:
        print(f"taipan: {error}", file=sys.stderr)
        return REFUSED
    summary = ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in sorted(counts.items()))
    print(f"{target / CONFIGURATION}: written in {seconds:.1f} s; {summary}")
    print(f"start it: taipan --config {target / CONFIGURATION}")
    return 0


def _read(source: str, path: Path) -> Migration:
    # Imported here, because each reader needs modules that the others do not.
    if source == "emqx":
        from .emqx import migrate_emqx

        return migrate_emqx(path)
    if source == "amqtt":
        from .amqtt import migrate_amqtt

        return migrate_amqtt(path)
    from .mosquitto import migrate_mosquitto

    return migrate_mosquitto(path)


def _print(text: str) -> None:
    try:
        if text:
            print(text, flush=True)
    except BrokenPipeError:  # the reader has closed the pipe; the work continues
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
