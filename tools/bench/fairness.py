"""Measure whether a saturated node still answers its operators: GET /api/v4/stats while S4 and S6 load the node.

``python -m tools.bench.fairness`` (``DUR=10``, ``ONLY="S4 S6a"``) writes its section of ``docs/performance.md``. The
node runs on one core with the shipped configuration. The load generator and the caller share another core; the caller
sends its next request 10 ms after each answer. The lag of the event loop is the node's own metric
``taipan_loop_lag_seconds``."""

import http.client
import json
import os
import re
import subprocess
import sys
import time
from base64 import b64encode
from typing import Any, Final, NamedTuple

from tests.support.node import free_port
from tools.bench.brokers import BrokerError, pinned, raise_file_limit, running
from tools.bench.latency import quantile
from tools.bench.page import write
from tools.bench.results import commit, machine
from tools.bench.run import LOADGEN

LOADS: Final = {
    "idle": ("no load", ()),
    "S4": ("1 to 1000, QoS 0", ("--map", "fanout", "--subs", "1000", "--outstanding", "20")),
    "S4b": (
        "1 to 1000, QoS 1",
        ("--map", "fanout", "--subs", "1000", "--outstanding", "20", "--qos", "1", "--window", "20"),
    ),
    "S6a": ("500 pairs, QoS 0", ("--pubs", "500", "--subs", "500", "--outstanding", "50")),
    "S6b": (
        "500 pairs, QoS 1",
        ("--pubs", "500", "--subs", "500", "--outstanding", "50", "--qos", "1", "--window", "50"),
    ),
}
ANSWER_GOAL: Final = 50.0
"""The goal for p99, in milliseconds."""
LAG_GOAL: Final = 10.0
PAUSE: Final = 0.01
APP, SECRET = "bench", "fairness-bench"
_LAG = re.compile(r'^taipan_loop_lag_seconds\{of="(\w+)"\} (\S+)$', re.MULTILINE)


class Fair(NamedTuple):
    """One measurement, in milliseconds. ``answers`` are sorted; ``lag`` has p50, p99, max, peak; ``delivered`` is
    messages per second."""

    answers: list[float]
    lag: dict[str, float]
    delivered: float


class Caller:
    """Sends requests to the management server over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self._headers = {"Authorization": "Basic " + b64encode(f"{APP}:{SECRET}".encode()).decode()}

    def ask(self, path: str) -> bytes:
        self._connection.request("GET", path, headers=self._headers)
        reply = self._connection.getresponse()
        body = reply.read()
        if reply.status != 200:
            raise BrokerError(f"{path}: {reply.status} {body[:200]!r}")
        return body

    def lag(self) -> dict[str, float]:
        """Return the loop's lag as the node reports it, in milliseconds."""
        found = {key: float(value) * 1000 for key, value in _LAG.findall(self.ask("/metrics").decode())}
        if not found:
            raise BrokerError("the node does not tell its loop's lag")
        return found


def measure(load: tuple[str, ...], seconds: float, cores: tuple[int | None, int | None]) -> Fair:
    """Apply a load to a new node for ``seconds``; an empty ``load`` means none."""
    management = free_port()
    settings = (
        f"management.bind=127.0.0.1:{management}",
        "dashboard.enabled=false",
        f"management.apps.0.id={APP}",
        f"management.apps.0.secret={SECRET}",
    )
    with running("taipan", cores[0], settings) as (port, _):
        command = [*pinned(cores[1]), str(LOADGEN / "loadgen"), "pubsub", "--port", str(port)]
        command += [*load, "--duration", str(seconds), "--warmup", "1"]
        driver = None
        if load:
            driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            return _asked(Caller(management), driver, seconds)
        finally:
            if driver is not None:
                driver.kill()
                driver.wait()
                assert driver.stdout is not None
                driver.stdout.close()


def _asked(caller: Caller, driver: "subprocess.Popen[bytes] | None", seconds: float) -> Fair:
    time.sleep(2.0 if driver is not None else 0.1)  # connections, subscriptions and the warm-up
    answers = []
    until = time.perf_counter() + seconds - 1.0
    while (begun := time.perf_counter()) < until and (driver is None or driver.poll() is None):
        caller.ask("/api/v4/stats")
        answers.append((time.perf_counter() - begun) * 1000)
        time.sleep(PAUSE)
    lag = caller.lag()
    delivered = 0.0
    if driver is not None:
        output, _ = driver.communicate(timeout=60)
        row: dict[str, Any] = json.loads(output)
        delivered = float(row["delivered_per_s"])
    if len(answers) < 10:
        raise BrokerError(f"only {len(answers)} answers")
    return Fair(sorted(answers), lag, delivered)


def line(name: str, fair: Fair) -> str:
    """Return a row of the table."""
    answers, lag = fair.answers, fair.lag
    who = LOADS[name][0] if name == "idle" else f"{name}: {LOADS[name][0]}"
    return (
        f"| {who} | {fair.delivered:,.0f} | {len(answers)} | {quantile(answers, 0.5):.1f} | "
        f"{quantile(answers, 0.99):.1f} | {answers[-1]:.1f} | {lag['p50']:.1f} | {lag['p99']:.1f} | {lag['max']:.1f} |"
    )


def main() -> int:
    seconds = float(os.environ.get("DUR", "10"))
    names = os.environ.get("ONLY", "").split() or list(LOADS)
    raise_file_limit()
    subprocess.run(["make", "--silent", "-C", str(LOADGEN)], check=True)
    usable = sorted(os.sched_getaffinity(0))
    cores = (usable[0], usable[1]) if len(usable) > 1 else (None, None)
    rows = []
    missed = []
    load = os.getloadavg()[0]
    for name in names:
        fair = measure(LOADS[name][1], seconds, cores)
        rows.append(line(name, fair))
        print(rows[-1])
        if quantile(fair.answers, 0.99) > ANSWER_GOAL or fair.lag["p99"] > LAG_GOAL:
            missed.append(name)
    said = f"Missed: {', '.join(missed)}." if missed else "All loads meet them."
    text = (
        f"Written by `python -m tools.bench.fairness` with `DUR={seconds:g}` at commit {commit()}; {machine()['cpu']}. "
        f"The machine's load average before was {load:.1f}.\n"
        "Milliseconds until GET /api/v4/stats is answered while the node is saturated; the next request follows 10 ms "
        "after each\nanswer. The lag of the event loop is from the node's own probe (metric `taipan_loop_lag_seconds`)."
        " The caller shares its\ncore with the load generator. The goals are an answer within "
        f"{ANSWER_GOAL:g} ms and a lag below {LAG_GOAL:g} ms, both at p99. {said}\n\n"
        "| load | delivered/s | answers | p50 | p99 | max | loop lag p50 | p99 | max |\n"
    )
    write("Fairness", text + "|---|---|---|---|---|---|---|---|---|\n" + "\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
