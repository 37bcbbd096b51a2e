"""Measure Taipan and other brokers under the same load: ``make bench`` (``ONLY="S1 S2"`` or ``table``, ``ROUNDS``,
``DUR``).

The broker runs on core 0 and the load generator on core 1. In each scenario, the rounds alternate between the brokers.
Each round starts a new process, and only one broker runs at a time. Taipan runs compiled if the compiled modules are
current, which ``make bench`` ensures unless ``COMPILED=no``. ``BROKERS="taipan mosquitto"`` selects from the installed
brokers. Every run is kept in ``results/``. A run against Mosquitto with at least the scenarios of ``table`` and at
least three rounds also writes its sections of ``docs/performance.md``; ``python -m tools.bench.report`` writes them
from the kept files."""

import datetime
import json
import os
import subprocess
import sys
import time
from collections import defaultdict

from tools.bench.brokers import ROOT, BrokerError, installed, pinned, raise_file_limit, running
from tools.bench.peers import PEERS
from tools.bench.report import scenario_table, write_page
from tools.bench.results import Measurement, Row, Runs, commit, faults, figure, machine, modules, save
from tools.bench.scenarios import SCENARIOS, TABLE

LOADGEN = ROOT / "tools" / "loadgen"
OVERHEAD = 2.5  # seconds a run takes besides DUR: start, warm-up, drain


def measure(
    broker: str,
    scenario: str,
    duration: str,
    cores: tuple[int | None, int | None],
    settings: tuple[str, ...] = (),
) -> Row:
    """Run one scenario against a new broker; ``settings`` are added to those of the scenario."""
    wanted = SCENARIOS[scenario]
    core = cores[0] if wanted.pinned else None
    try:
        with running(
            broker, core, (*wanted.settings, *settings), wanted.persistence, wanted.nodelay, wanted.transport
        ) as (port, pid):
            row = load(scenario, port, pid, duration, cores[1])
    except (BrokerError, subprocess.SubprocessError, ValueError) as error:
        return {"label": scenario, "error": str(error)}
    if not figure(row, wanted.figures[0].path):
        row.setdefault("error", "nothing was measured")
    return row


def load(scenario: str, port: int, pid: int | str, duration: str, core: int | None) -> Row:
    """Apply the load of one scenario to a running broker. ``pid``: its process, or several with commas. Raises
    SubprocessError, or ValueError without a report."""
    wanted = SCENARIOS[scenario]
    done = subprocess.run(
        [str(LOADGEN / "scenarios.sh"), "127.0.0.1", str(port), str(pid)],
        env={
            **os.environ,
            "ONLY": wanted.base or scenario,
            "DUR": duration,
            "REPEAT": "1",
            "LG_RUN": " ".join(pinned(core)),
            "LG_ARGS": wanted.args,
        },
        stdout=subprocess.PIPE,
        text=True,
        timeout=150,
        check=True,
    )
    row: Row = json.loads(done.stdout.strip().split("\n")[-1])
    return row


def takes_part(broker: str, scenario: str) -> bool:
    """Return whether a broker is measured in a scenario."""
    against = SCENARIOS[scenario].against
    return broker == "taipan" or not against or broker in against


def chosen(words: list[str]) -> list[str]:
    """Return the scenarios that ``ONLY`` names: all if it is empty or ``all``; for ``table``, those of the issue's
    table.

    Raises KeyError with the first unknown name.
    """
    found: list[str] = []
    for word in words or ["all"]:
        if word == "all":
            found += SCENARIOS
        elif word == "table":
            found += TABLE
        elif word in SCENARIOS:
            found.append(word)
        else:
            raise KeyError(word)
    return list(dict.fromkeys(found))


def has_tls() -> bool:
    """Return whether the load generator was built with TLS."""
    command = [str(LOADGEN / "loadgen"), "sink", "--tls", "1", "--port", "0", "--timeout", "0"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def cores_apart() -> tuple[int | None, int | None]:
    """Return the core of the broker and the core of the load."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) > 1:
        return usable[0], usable[1]
    print("one core only: broker and load share it, and the figures mean little", file=sys.stderr)
    return None, None


def rounds_of(scenarios: list[str], brokers: dict[str, str], rounds: int, duration: str) -> Runs:
    """Run every round; skip a broker that cannot run a scenario after its first attempt."""
    cores = cores_apart()
    runs: Runs = defaultdict(list)
    for scenario in scenarios:
        first = SCENARIOS[scenario].figures[0]
        for number in range(1, rounds + 1):
            for broker in brokers:
                if not takes_part(broker, scenario):
                    continue
                before = runs[scenario, broker]
                if before and broker not in ("taipan", "mosquitto") and "error" in before[0]:
                    continue
                row = measure(broker, scenario, duration, cores)
                before.append(row)
                value = figure(row, first.path)
                said = f"{value:>14,.0f} {first.unit:14} {faults(row) or ''}"
                print(f"{scenario:4} round {number}  {broker:10} {said}", flush=True)
    return runs


def main() -> int:
    try:
        only = os.environ.get("ONLY", "").split()
        scenarios = chosen(only)
    except KeyError as error:
        print(f"unknown scenario {error}; there are {' '.join(SCENARIOS)}, table and all", file=sys.stderr)
        return 2
    rounds, duration = int(os.environ.get("ROUNDS", "3")), os.environ.get("DUR", "3")
    brokers = installed()
    for name, peer in PEERS.items():
        if name not in brokers:
            print(f"{name} is not installed and is left out ({peer.missing})", file=sys.stderr)
    if "BROKERS" in os.environ:
        brokers = {name: brokers[name] for name in os.environ["BROKERS"].split() if name in brokers}
    subprocess.run(["make", "--silent", "-C", str(LOADGEN)], check=True)
    raise_file_limit()
    encrypted = [each for each in scenarios if SCENARIOS[each].transport == "ssl"]
    if encrypted and not has_tls():
        print(f"{' '.join(encrypted)} are left out: the load generator was built without libssl-dev", file=sys.stderr)
        scenarios = [each for each in scenarios if each not in encrypted]
    count = rounds * sum(takes_part(broker, scenario) for scenario in scenarios for broker in brokers)
    print(f"{count} runs, about {count * (float(duration) + OVERHEAD) / 60:.0f} minutes", flush=True)

    begun, busy, ran = time.monotonic(), os.getloadavg()[0], modules()
    print(f"Taipan runs {ran}", flush=True)
    runs = rounds_of(scenarios, brokers, rounds, duration)
    if modules() != ran:  # the sources of compiled modules were edited
        ran = f"{ran}, then {modules()}"
        print(f"Taipan ran {ran}: the figures mean nothing", file=sys.stderr)
    words = f'ONLY="{" ".join(only)}" ' if only else ""
    about = machine() | {
        "command": f"make bench {words}ROUNDS={rounds} DUR={duration}",
        "commit": commit(),
        "taken": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "modules": ran,
        "rounds": str(rounds),
        "duration": duration,
        "busy": f"{busy:.1f}",
        "minutes": f"{(time.monotonic() - begun) / 60:.0f}",
        "pinning": "pinned with `taskset`" if len(os.sched_getaffinity(0)) > 1 else "not pinned: there was one core",
    }
    measured = Measurement(about, brokers, runs)
    print("\n" + "\n".join(scenario_table(measured)))
    print(f"\n{save(measured).relative_to(ROOT)} is written, after {about['minutes']} minutes")
    if {"taipan", "mosquitto"} <= set(brokers) and rounds >= 3 and set(TABLE) <= set(scenarios):
        for path in write_page(measured):
            print(f"{path.relative_to(ROOT)} is written")
    else:
        print("docs/performance.md stays: it requires the whole table, three rounds and Mosquitto")
    return 1 if any(faults(row) for (_, broker), rows in runs.items() if broker == "taipan" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
