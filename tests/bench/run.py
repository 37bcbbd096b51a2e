"""Taipan and Mosquitto under the same load; ``make bench`` (``ONLY="S1 S2"`` or ``all``, ``ROUNDS=3``, ``DUR=3``).

The broker runs on core 0 and the load generator on core 1. Per scenario the rounds go broker by broker, each on a
fresh process, only one of them running at a time. Every run is kept in ``results/``; a run of at least the default
scenarios in at least three rounds, against Mosquitto, also writes ``docs/performance.md``.
"""

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.brokers import ROOT, BrokerError, installed, pinned, raise_file_limit, running
from tests.bench.page import PAGE, write

LOADGEN = ROOT / "tests" / "bench" / "loadgen"
RESULTS = ROOT / "tests" / "bench" / "results"
FAULTS = ("lost", "duplicates", "out_of_order", "too_late", "missing", "errors", "failed", "refused", "closed")
FAULTS_TOO = ("stalls", "unacked", "proto_err", "pub_err", "foreign")


class Scenario(NamedTuple):
    """What a scenario of ``scenarios.sh`` is called, which of its figures counts, and what the brokers need for it.

    ``base`` is the scenario of ``scenarios.sh`` that it varies, by ``args`` for the load generator. ``persistence``
    turns Mosquitto's on; ``pinned`` keeps the broker on one core.
    """

    text: str
    figure: str
    more_is_better: bool = True
    settings: tuple[str, ...] = ()
    base: str = ""
    args: str = ""
    persistence: bool = False
    pinned: bool = True


DISK = "durability.level=disk"
SCENARIOS = {
    "S1": Scenario("1 to 1, QoS 0, delivered/s", "delivered_per_s"),
    "S2": Scenario("1 to 1, QoS 1, delivered/s", "delivered_per_s"),
    "S3": Scenario("1 to 1, QoS 2, delivered/s", "delivered_per_s"),
    "S4": Scenario("1 to 1000, QoS 0, delivered/s", "delivered_per_s"),
    "S4b": Scenario("1 to 1000, QoS 1, delivered/s", "delivered_per_s"),
    "S5": Scenario("1000 to 1, QoS 0, delivered/s", "delivered_per_s"),
    "S6a": Scenario("500 pairs, QoS 0, delivered/s", "delivered_per_s"),
    "S6b": Scenario("500 pairs, QoS 1, delivered/s", "delivered_per_s"),
    "S7": Scenario("100 pairs at 5,000/s, QoS 0, latency p99 in \u00b5s", "lat_us.p99", False),
    "S7b": Scenario("100 pairs at 5,000/s, QoS 1, latency p99 in \u00b5s", "lat_us.p99", False),
    "S8": Scenario("connections/s", "conn_per_s"),
    "S9a": Scenario("1,000 mixed filters, delivered/s", "match.delivered_per_s"),
    "S9b": Scenario("100,000 mixed filters, delivered/s", "match.delivered_per_s"),
    "S9c": Scenario("1,000,000 mixed filters, delivered/s", "match.delivered_per_s"),
    "S10": Scenario("100,000 retained messages, replayed/s", "replay_per_s"),
    "S11": Scenario("connect, subscribe, publish, receive, disconnect; cycles/s", "cycles_per_s"),
    "S12": Scenario(
        "50,000 messages queued offline, QoS 1, drained/s",
        "drain_per_s",
        settings=("zones.external.max_queued_messages=0",),
    ),
    "D2": Scenario(
        "durable: 1 to 1, QoS 1, persistent sessions, Mosquitto in memory; delivered/s",
        "delivered_per_s",
        settings=(DISK,),
        base="S2",
        args="--clean 0",
    ),
    "D2u": Scenario(
        "the same on both cores; delivered/s",
        "delivered_per_s",
        settings=(DISK,),
        base="S2",
        args="--clean 0",
        pinned=False,
    ),
    "D12": Scenario(
        "durable: 50,000 messages queued offline, QoS 1, persistence on both; drained/s",
        "drain_per_s",
        settings=(DISK, "zones.external.max_queued_messages=0"),
        base="S12",
        persistence=True,
    ),
    "D12q": Scenario(
        "the same; queued/s",
        "enqueue_per_s",
        settings=(DISK, "zones.external.max_queued_messages=0"),
        base="S12",
        persistence=True,
    ),
    "S13": Scenario("1 to 1, 1 MiB payload, delivered/s", "delivered_per_s"),
}
DEFAULT = ["S1", "S2", "S3", "S4", "S4b", "S5", "S6a", "S6b"]

Row = dict[str, Any]
Runs = dict[tuple[str, str], list[Row]]  # (scenario, broker) -> one row per round


def figure(row: Row, name: str) -> float:
    """The figure called ``outer.inner`` of one JSON line; 0.0 where the run failed."""
    value: Any = row
    for part in name.split("."):
        value = value.get(part, 0.0) if isinstance(value, dict) else 0.0
    return float(value)


def faults(row: Row) -> dict[str, Any]:
    """What must be zero in a clean run and is not."""
    found = {name: row[name] for name in FAULTS + FAULTS_TOO if row.get(name)}
    if "error" in row:
        found["error"] = row["error"]
    return found


def measure(
    broker: str,
    scenario: str,
    duration: str,
    cores: tuple[int | None, int | None],
    settings: tuple[str, ...] = (),
) -> Row:
    """One scenario against one fresh broker; ``settings`` come on top of the scenario's."""
    wanted = SCENARIOS[scenario]
    environment = {
        **os.environ,
        "ONLY": wanted.base or scenario,
        "DUR": duration,
        "REPEAT": "1",
        "LG_RUN": " ".join(pinned(cores[1])),
        "LG_ARGS": wanted.args,
    }
    core = cores[0] if wanted.pinned else None
    try:
        with running(broker, core, (*wanted.settings, *settings), wanted.persistence) as (port, pid):
            done = subprocess.run(
                [str(LOADGEN / "scenarios.sh"), "127.0.0.1", str(port), str(pid)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                timeout=120,
                check=True,
            )
    except (BrokerError, subprocess.SubprocessError) as error:
        return {"label": scenario, "error": str(error)}
    row: Row = json.loads(done.stdout.strip().split("\n")[-1])
    if not figure(row, SCENARIOS[scenario].figure):
        row.setdefault("error", "nothing was measured")
    return row


def machine() -> dict[str, str]:
    """What the figures were taken on."""
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
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "uvloop": uvloop,
    }


def commit() -> str:
    """The short name of the commit, with ``-changed`` where the tree differs from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    name = git("rev-parse", "--short", "HEAD") or "uncommitted"
    return name + ("-changed" if git("status", "--porcelain", "--untracked-files=no") else "")


def table(runs: Runs, brokers: list[str]) -> list[str]:
    """One line per scenario: medians and ranges per broker, the ratio, the broker's own processor time, the faults."""
    ratio = "taipan" in brokers and "mosquitto" in brokers
    heads = ["scenario", *brokers, *(["ratio"] if ratio else []), "faults"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for scenario in dict.fromkeys(scenario for scenario, _ in runs):
        about = SCENARIOS[scenario]
        cells = [f"{scenario}: {about.text}" + (" (1)" if about.settings else "")]
        medians: dict[str, float] = {}
        wrong: list[str] = []
        for broker in brokers:
            rows = runs[scenario, broker]
            values = [figure(row, about.figure) for row in rows]
            medians[broker] = statistics.median(values)
            cells.append(f"{medians[broker]:,.0f} ({min(values):,.0f} to {max(values):,.0f})")
            for row in rows:
                wrong += [f"{broker} {name} {value}" for name, value in faults(row).items()]
        if ratio:
            ours, theirs = medians["taipan"], medians["mosquitto"]
            better = (ours, theirs) if about.more_is_better else (theirs, ours)
            cells.append(f"{better[0] / better[1]:.2f}" if better[1] else "-")
        cells.append("; ".join(dict.fromkeys(wrong)).replace("|", "/").replace("\n", " ") or "none")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def page(runs: Runs, brokers: dict[str, str], about: dict[str, str], command: str, taken: str) -> str:
    """``docs/performance.md``."""
    names = ", ".join(f"{name} {number}" for name, number in brokers.items())
    raised = {s: SCENARIOS[s].settings for s, _ in runs if SCENARIOS[s].settings}
    lines = [
        "# Performance",
        "",
        f"Written by `{command}` on {taken} at commit {about['commit']}: {names}.",
        f"{about['cpu']}; {about['system']}; {about['python']}, uvloop {about['uvloop']}.",
        "",
        f"The broker runs on one core, the load generator ({about['pinning']}) on another; one broker runs at a time,",
        "fresh for every figure, and the rounds go broker by broker. Taipan runs with the configuration it ships with:",
        "access checks, metrics and session limits on. Mosquitto has `allow_anonymous true` and",
        "`max_queued_messages 0`, the rest as it comes. Figures are medians of",
        f"{about['rounds']} rounds of {about['duration']} s with their range; above a ratio of 1 Taipan is ahead.",
        "Faults are messages lost, duplicated or out of order, and connections or runs that failed.",
        "What the scenarios do exactly is in `tests/bench/loadgen/README.md`.",
        "",
        *table(runs, list(brokers)),
    ]
    if raised:
        limits = "; ".join(f"{s}: `{' '.join(settings)}`" for s, settings in raised.items())
        lines += ["", f"(1) Taipan with raised limits, {limits}."]
    return "\n".join(lines) + "\n"


def save(runs: Runs, about: dict[str, str], brokers: dict[str, str], command: str, taken: str) -> Path:
    """One JSON file with every line of the generator."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{taken}-{about['commit']}.json"
    rows = [
        json.dumps({"scenario": scenario, "broker": broker, "round": number, **row})
        for (scenario, broker), each in runs.items()
        for number, row in enumerate(each, 1)
    ]
    head = json.dumps({"command": command, "brokers": brokers, **about})
    joined = ",\n  ".join(rows)
    path.write_text(f'{{"run": {head},\n "rows": [\n  {joined}\n]}}\n', encoding="utf-8")
    return path


def main() -> int:
    only = os.environ.get("ONLY", "").split() or DEFAULT
    scenarios = [each for each in SCENARIOS if each != "S9c"] if only == ["all"] else only
    unknown = [each for each in scenarios if each not in SCENARIOS]
    if unknown:
        print(f"unknown scenario {unknown[0]}; there are {' '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    rounds, duration = int(os.environ.get("ROUNDS", "3")), os.environ.get("DUR", "3")
    brokers = installed()
    if "BROKERS" in os.environ:
        brokers = {name: brokers[name] for name in os.environ["BROKERS"].split() if name in brokers}
    if "mosquitto" not in brokers:
        print("mosquitto is not installed: Taipan alone", file=sys.stderr)
    subprocess.run(["make", "--silent", "-C", str(LOADGEN)], check=True)
    raise_file_limit()
    cores: tuple[int | None, int | None] = (None, None)
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) > 1:
        cores = (usable[0], usable[1])
    else:
        print("one core only: broker and load share it, and the figures mean little", file=sys.stderr)

    runs: Runs = defaultdict(list)
    for scenario in scenarios:
        for number in range(1, rounds + 1):
            for broker in brokers:
                row = measure(broker, scenario, duration, cores)
                runs[scenario, broker].append(row)
                value = figure(row, SCENARIOS[scenario].figure)
                print(f"{scenario:4} round {number}  {broker:10} {value:>14,.0f}  {faults(row) or ''}", flush=True)

    taken = datetime.datetime.now(datetime.UTC).date().isoformat()
    chosen = "" if scenarios == DEFAULT else f'ONLY="{" ".join(only)}" '
    command = f"make bench {chosen}ROUNDS={rounds} DUR={duration}"
    about = machine() | {
        "commit": commit(),
        "rounds": str(rounds),
        "duration": duration,
        "pinning": "pinned with `taskset`" if cores[0] is not None else "not pinned: there was one core only",
    }
    print("\n" + "\n".join(table(runs, list(brokers))))
    print(f"\n{save(runs, about, brokers, command, taken).relative_to(ROOT)} is written")
    if len(brokers) == 2 and rounds >= 3 and set(DEFAULT) <= set(scenarios):
        write("", page(runs, brokers, about, command, taken))
        print(f"{PAGE.relative_to(ROOT)} is written")
    else:
        print("docs/performance.md stays: it wants the default scenarios, three rounds and both brokers")
    return 1 if any(faults(row) for (_, broker), rows in runs.items() if broker == "taipan" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
