"""The lines of the load generator as JSON, with the measured scenarios, the machine and the commit."""

import datetime
import json
import os
import platform
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from taipan.broker.compiled import BUILT, COMPILED, INTERPRETED, NO, VARIABLE, Compiled, asked_for
from tools.bench.brokers import ROOT
from tools.bench.interpreter import described

RESULTS = ROOT / "tools" / "bench" / "results"
FAULTS = ("lost", "duplicates", "out_of_order", "too_late", "missing", "errors", "failed", "refused", "closed")
FAULTS_TOO = ("stalls", "unacked", "proto_err", "pub_err", "foreign", "bad_id", "bad_props")

UNRECORDED = "compiled or interpreted (not recorded)"

Row = dict[str, Any]
Runs = dict[tuple[str, str], list[Row]]
"""One row for each round, by scenario and broker."""


class Measurement(NamedTuple):
    """``about``: ``command``, ``commit``, ``taken``, ``modules``, ``rounds`` ...; ``brokers``: name -> version."""

    about: dict[str, str]
    brokers: dict[str, str]
    runs: Runs


def figure(row: Row, name: str) -> float:
    """Return the figure ``outer.inner`` of one JSON line; 0.0 if the run failed."""
    value: Any = row
    for part in name.split("."):
        value = value.get(part, 0.0) if isinstance(value, dict) else 0.0
    return float(value)


def faults(row: Row) -> dict[str, Any]:
    """Return the counters that are not zero although a clean run has zero."""
    found = {name: row[name] for name in FAULTS + FAULTS_TOO if row.get(name)}
    if "error" in row:
        found["error"] = row["error"]
    return found


def cost(row: Row) -> float:
    """Return the broker's processor time per delivered message in microseconds; 0.0 if nothing was delivered."""
    delivered = float(row.get("delivered_per_s", 0.0))
    return 1e6 * float(row.get("broker_cpu", 0.0)) / delivered if delivered else 0.0


def machine() -> dict[str, str]:
    """Return the machine on which the figures were measured."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    try:
        uvloop = version("uvloop")
    except PackageNotFoundError:
        uvloop = "none"
    return {
        "cpu": f"{model}, {len(os.sched_getaffinity(0))} cores",
        "system": f"{platform.system()} {platform.release()}",
        "python": described(),
        "uvloop": uvloop,
    }


def modules() -> str:
    """Return ``compiled`` or ``interpreted``: what a node started now runs, according to the environment that it
    inherits."""
    if os.environ.get(VARIABLE) == NO:
        return INTERPRETED
    return COMPILED if Compiled(Path(asked_for() or BUILT)).unusable() is None else INTERPRETED


def commit() -> str:
    """Return the short name of the commit, with ``-changed`` if the tree differs from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    name = git("rev-parse", "--short", "HEAD") or "uncommitted"
    return name + ("-changed" if git("status", "--porcelain", "--untracked-files=no") else "")


def save(measured: Measurement, directory: Path = RESULTS) -> Path:
    """Write a JSON file with every line of the generator, named after the minute and the commit."""
    directory.mkdir(exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    path = directory / f"{now:%Y-%m-%d-%H%M}-{measured.about['commit']}.json"
    rows = [
        json.dumps({"scenario": scenario, "broker": broker, "round": number, **row})
        for (scenario, broker), each in measured.runs.items()
        for number, row in enumerate(each, 1)
    ]
    head = json.dumps({**measured.about, "brokers": measured.brokers})
    joined = ",\n  ".join(rows)
    path.write_text(f'{{"run": {head},\n "rows": [\n  {joined}\n]}}\n', encoding="utf-8")
    return path


def load(path: Path) -> Measurement:
    """Read a file of ``save``."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    about: dict[str, Any] = kept["run"]
    brokers: dict[str, str] = about.pop("brokers")
    about.setdefault("taken", path.name[:10])
    about.setdefault("modules", UNRECORDED)
    runs: Runs = defaultdict(list)
    for row in kept["rows"]:
        key = (row.pop("scenario"), row.pop("broker"))
        row.pop("round")
        runs[key].append(row)
    return Measurement(about, brokers, runs)


def joined(measurements: Iterable[Measurement]) -> Measurement:
    """Join several runs. If more than one has a scenario, the last one is used, as a whole."""
    about: dict[str, str] = {}
    brokers: dict[str, str] = {}
    runs: Runs = defaultdict(list)
    for each in measurements:
        again = {scenario for scenario, _ in each.runs}
        runs = defaultdict(list, {key: rows for key, rows in runs.items() if key[0] not in again})
        runs.update(each.runs)
        brokers |= each.brokers
        for name, text in each.about.items():
            known = about.get(name, "")
            about[name] = f"{known}; {text}" if known and text not in known.split("; ") else known or text
    return Measurement(about, brokers, runs)
