"""Measure what several workers cost: the processor time per message with one node, with ``--workers 2``, and with
Mosquitto.

``python -m tools.bench.workers`` (``ONLY="S1 S6b"``, ``ROUNDS=3``, ``DUR=1``, ``WORKERS=2``) writes its section of
``docs/performance.md``. The processes of the broker may use all cores, and the load generator uses one of them. The
processor time is the sum over all processes, including the NATS server; other work on the machine disturbs it less than
rates."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Final

from tools.bench.brokers import BrokerError, raise_file_limit, running
from tools.bench.page import write
from tools.bench.results import commit, machine, modules
from tools.bench.run import LOADGEN, cores_apart, load
from tools.bench.scenarios import SCENARIOS

ALL: Final = ("S1", "S2", "S3", "S4", "S4b", "S5", "S6a", "S6b")
ONE_TO_ONE: Final = ("S1", "S2", "S3")
"""All messages cross, or none: a median of both says nothing."""
PAIRS: Final = ("S6a", "S6b")
CORES: Final = 16
"""The machine for which the costs of pairs are extrapolated."""
_NATS: Final = b"nats-server"

Costs = dict[str, float]
"""Microseconds a delivered message: ``all``, and of it ``nats``; ``rate``: delivered messages a second."""


def processes(pid: int) -> Iterator[int]:
    """Yield the process and those that it has started."""
    yield pid
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(each.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid:
            yield from processes(int(each.parent.name))


def used(pids: list[int]) -> float:
    """Return the seconds of processor time of these processes."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(broker: str, scenario: str, duration: str, settings: tuple[str, ...]) -> Costs | str:
    """Run one scenario against a new broker; the text is an error."""
    wanted = SCENARIOS[scenario]
    try:
        with running(broker, None, (*wanted.settings, *settings), wanted.persistence, wanted.nodelay) as (port, pid):
            pids = list(processes(pid))
            nats = [each for each in pids if Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")[0].endswith(_NATS)]
            before = used(pids), used(nats)
            row = load(scenario, port, ",".join(map(str, pids)), duration, cores_apart()[1])
            everything, of_nats = used(pids) - before[0], used(nats) - before[1]
    except (BrokerError, OSError, subprocess.SubprocessError, ValueError) as error:
        return str(error)
    rate = float(row.get("delivered_per_s", 0))
    if not rate:
        return str(row.get("error", "nothing was delivered"))
    cost = float(row["broker_cpu"]) / rate * 1e6
    return {"rate": rate, "all": cost, "nats": cost * of_nats / everything if everything else 0.0}


def cost(costs: Mapping[str, list[Costs]], name: str) -> float:
    return median(each["all"] for each in costs[name])


def on_paper(node: float, workers: float, count: int, cores: int) -> float:
    """Return the calculated throughput of ``cores`` workers, each on its own core, as a multiple of one node. The more
    workers there are, the more messages cross from one to another, at the measured cost."""
    crossing = (workers - node) / (1 - 1 / count)
    return cores * node / (node + crossing * (1 - 1 / cores))


def line(scenario: str, costs: Mapping[str, list[Costs]], count: int) -> str:
    """Return a row of the table: medians, with the range of the processor time."""

    def told(name: str) -> str:
        values = [each["all"] for each in costs[name]]
        return f"{cost(costs, name):.2f} ({min(values):.2f} to {max(values):.2f})"

    nats = median(each["nats"] for each in costs["workers"])
    node, workers = cost(costs, "node"), cost(costs, "workers")
    times = "-" if scenario in ONE_TO_ONE else f"{count * node / workers:.2f}"
    paper = f"{on_paper(node, workers, count, CORES):.1f}" if scenario in PAIRS else "-"
    return (
        f"| {scenario}: {SCENARIOS[scenario].text} | {told('mosquitto')} | {told('node')} | {told('workers')} | "
        f"{nats:.2f} | {times} | {paper} |"
    )


def main() -> int:
    only, rounds = os.environ.get("ONLY", "").split() or list(ALL), int(os.environ.get("ROUNDS", "3"))
    duration, count = os.environ.get("DUR", "1"), os.environ.get("WORKERS", "2")
    variants = {
        "mosquitto": ("mosquitto", ()),
        "node": ("taipan", ()),
        "workers": ("taipan", (f"node.workers={count}",)),
    }
    raise_file_limit()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # nats-server is there
    os.environ["PYTHONPATH"] = sysconfig.get_path("platlib")  # whatever Python measured nodes run on
    subprocess.run(["make", "--silent", "-C", str(LOADGEN)], check=True)
    before = os.getloadavg()[0]
    lines = []
    for scenario in only:
        costs: dict[str, list[Costs]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, (broker, settings) in variants.items():
                found = measure(broker, scenario, duration, settings)
                print(scenario, name, found, flush=True)
                if not isinstance(found, str):
                    costs[name].append(found)
        if all(costs.values()):
            lines.append(line(scenario, costs, int(count)))
    about = machine()
    text = (
        f"Written by `python -m tools.bench.workers` with `ROUNDS={rounds} DUR={duration}` at commit {commit()}; "
        f"{about['cpu']}, {about['python']}, {modules()}. The load average was {before:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after; a load above 1 means that other work was disturbing.\n"
        "Microseconds of processor time for each delivered message, of all processes of the broker: the median and the "
        f"range. *Of it NATS* is the part of the NATS server between the {count} workers. The system distributes the "
        f"connections, so that about {round(100 - 100 / int(count))} % of the messages cross from one worker to "
        "another; with 1 to 1, all or none do, so that the range matters, not the median. *Times a node* is how many "
        f"messages {count} workers serve by these costs if each has a core of its own, and *on {CORES} cores* the same "
        f"for {CORES} workers, on paper: more of their messages cross.\n\n"
        f"| scenario | Mosquitto | one node | {count} workers | of it NATS | times a node | on {CORES} cores |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    write("Workers", text + "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
