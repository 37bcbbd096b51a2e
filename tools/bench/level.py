"""The cost of durability for clients that do not use it: processor time per message of clean sessions at both levels.

``python -m tools.bench.level`` (``ROUNDS=5``, ``DUR=3``) writes its section of ``docs/performance.md``. The rounds go
level by level, each on a fresh node.
"""

import os
import statistics
import subprocess
import sys
from collections import defaultdict

from tools.bench.brokers import raise_file_limit
from tools.bench.page import write
from tools.bench.results import commit, cost, faults, machine
from tools.bench.run import LOADGEN, measure
from tools.bench.scenarios import SCENARIOS

LEVELS = ("disk", "memory")


def main() -> int:
    rounds, duration = int(os.environ.get("ROUNDS", "5")), os.environ.get("DUR", "3")
    subprocess.run(["make", "--silent", "-C", str(LOADGEN)], check=True)
    raise_file_limit()
    usable = sorted(os.sched_getaffinity(0))
    cores = (usable[0], usable[1]) if len(usable) > 1 else (None, None)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    wrong: list[str] = []
    for number in range(1, rounds + 1):
        for scenario in ("S2", "S6b"):
            for level in LEVELS if number % 2 else LEVELS[::-1]:
                row = measure("taipan", scenario, duration, cores, (f"durability.level={level}",))
                found[scenario, level].append(cost(row))
                wrong += [f"{scenario} {level} {name} {value}" for name, value in faults(row).items()]
                print(f"{scenario:4} round {number}  {level:7} {found[scenario, level][-1]:6.2f} µs", flush=True)
    lines = [f"| scenario | {' | '.join(LEVELS)} | ratio |", "|---|---|---|---|"]
    for scenario in ("S2", "S6b"):
        medians = [statistics.median(found[scenario, level]) for level in LEVELS]
        cells = [
            f"{middle:.2f} ({min(found[scenario, level]):.2f} to {max(found[scenario, level]):.2f})"
            for level, middle in zip(LEVELS, medians, strict=True)
        ]
        ratio = f"{medians[0] / medians[1]:.2f}" if medians[1] else "-"
        lines.append(f"| {scenario}: {SCENARIOS[scenario].text} | {' | '.join(cells)} | {ratio} |")
    text = (
        f"Written by `python -m tools.bench.level` with `ROUNDS={rounds} DUR={duration}` at commit {commit()}; "
        f"{machine()['cpu']}.\nMicroseconds of processor time per message with clean sessions, at both levels of "
        f"durability: medians of\n{rounds} interleaved rounds with their range. "
        f"Faults: {'; '.join(wrong) or 'none'}.\n\n" + "\n".join(lines)
    )
    print("\n" + text)
    write("Clean sessions at both levels", text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
