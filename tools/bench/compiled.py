"""The gain from ``make compile``: Taipan interpreted, compiled, and Mosquitto, interleaved.

``make bench-compiled``. ``ONLY``, ``ROUNDS`` (3) and ``DUR`` (2, seconds) as for ``make bench``. Writes its section of
``docs/performance.md`` if no run had a fault.
"""

import os
import statistics
import subprocess
import sys
from collections import defaultdict

from taipan.broker.compiled import BUILT, COMPILED, INTERPRETED, NO, VARIABLE, Compiled
from tools.bench.brokers import installed, raise_file_limit
from tools.bench.page import write
from tools.bench.results import Row, commit, faults, figure, machine
from tools.bench.run import LOADGEN, measure
from tools.bench.scenarios import SCENARIOS

SCENARIOS_WORTH_IT = ("S1", "S2", "S3", "S4", "S4b", "S5", "S6a", "S6b", "D2")
TITLE = "Compiled"
WAYS = {INTERPRETED: ("taipan", NO), COMPILED: ("taipan", str(BUILT)), "mosquitto": ("mosquitto", NO)}


def one(way: str, scenario: str, duration: str, cores: tuple[int | None, int | None]) -> Row:
    """Run once; the node inherits the choice of modules from the environment."""
    broker, directory = WAYS[way]
    os.environ[VARIABLE] = directory
    return measure(broker, scenario, duration, cores)


def line(scenario: str, rows: dict[str, list[Row]]) -> str:
    """Return medians with their range, and the ratios of compiled to interpreted and of compiled to Mosquitto."""
    path = SCENARIOS[scenario].figures[0].path
    values = {way: [figure(row, path) for row in each] for way, each in rows.items()}
    middle = {way: statistics.median(each) for way, each in values.items()}
    cells = [f"{scenario}: {SCENARIOS[scenario].text}"]
    cells += [f"{middle[way]:,.0f} ({min(each):,.0f} to {max(each):,.0f})" for way, each in values.items()]
    for below in (INTERPRETED, "mosquitto"):
        if below in middle:
            cells.append(f"{middle[COMPILED] / middle[below]:.2f}" if middle[below] else "-")
    return f"| {' | '.join(cells)} |"


def main() -> int:
    reason = Compiled(BUILT).unusable()
    if reason is not None:
        print(f"make compile first: {reason}", file=sys.stderr)
        return 2
    subprocess.run(["make", "--silent", "-C", str(LOADGEN)], check=True)
    raise_file_limit()
    ways = [way for way, (broker, _) in WAYS.items() if broker in installed()]
    usable = sorted(os.sched_getaffinity(0))
    cores = (usable[0], usable[1]) if len(usable) > 1 else (None, None)
    scenarios = os.environ.get("ONLY", "").split() or SCENARIOS_WORTH_IT
    rounds, duration = int(os.environ.get("ROUNDS", "3")), os.environ.get("DUR", "2")
    heads = ["scenario", *ways, "to interpreted", *(["to mosquitto"] if "mosquitto" in ways else [])]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    wrong: list[str] = []
    for scenario in scenarios:
        rows: dict[str, list[Row]] = defaultdict(list)
        for _ in range(rounds):
            for way in ways:
                row = one(way, scenario, duration, cores)
                rows[way].append(row)
                wrong += [f"{scenario} {way} {name} {value}" for name, value in faults(row).items()]
        lines.append(line(scenario, rows))
        print(lines[-1], flush=True)
    for each in wrong:
        print(each, file=sys.stderr)
    if wrong:
        return 1
    about = machine()
    head = [
        f"Written by `make bench-compiled` with `ROUNDS={rounds} DUR={duration}` at commit {commit()}; {about['cpu']}.",
        "The same node, interpreted and with the modules of `make compile`, next to Mosquitto. Messages delivered per",
        f"second, medians of {rounds} interleaved rounds with their range. Faults: none.",
    ]
    write(TITLE, "\n".join([*head, "", *lines]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
