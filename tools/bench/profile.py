"""The processor time by function: ``make bench-profile ONLY="S10 S11"`` writes ``tools/bench/profiles/<scenario>.md``.

Taipan runs under the load of ``make bench``, on the same cores and compiled in the same way, while py-spy samples its
stacks 200 times a second, including C functions. The cost of a stack is assigned to its innermost Taipan function.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.bench.brokers import ROOT, BrokerError, raise_file_limit, running
from tools.bench.results import commit, faults, machine, modules
from tools.bench.run import LOADGEN, chosen, cores_apart, has_tls, load
from tools.bench.scenarios import SCENARIOS
from tools.bench.stacks import EVENT_LOOP, Share, Thread, threads

PAGES = ROOT / "tools" / "bench" / "profiles"
RATE = 200
LIMIT = 300  # seconds after which py-spy gives up by itself
TITLES = {"MainThread": "The loop's thread", "store": "The store's thread"}
RESTS_BELOW = 0.8
RESTS = (
    "**But the loop waits for much of this load**, and where the cores are few, py-spy gets one mostly when a thread "
    "waits: short stretches of work are seen too seldom, and long ones (a garbage collection, several milliseconds of "
    "it) and waits up to some times too often. Only shares among functions of the same kind hold here."
)
OWN_FROM, INCLUSIVE_FROM, KIND_FROM = 0.007, 0.08, 0.002
"""The shares of the thread's work from which a function, and a kind within it, is listed."""


class ProfileError(Exception):
    """py-spy cannot be used here; the text gives the reason in one line."""


@contextlib.contextmanager
def recorded(pid: int, into: Path) -> Iterator[None]:
    """Record the stacks of the process during the block, into ``into``. Raises ProfileError."""
    spy = Path(sys.executable).parent / "py-spy"
    if not spy.exists():
        raise ProfileError("py-spy is missing (`make setup` brings it)")
    command = [str(spy), "record", "--native", "--threads", "--idle", "-f", "raw", "-r", str(RATE), "-d", str(LIMIT)]
    process = subprocess.Popen(
        [*command, "-o", str(into), "-p", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = ""
    try:
        while "Sampling process" not in said:
            line = process.stdout.readline()
            if not line:
                raise ProfileError(f"py-spy may not look at the process: {' '.join(said.split())[-200:]}")
            said += line
        yield
        process.send_signal(signal.SIGINT)  # it writes what it has
        said = process.communicate(timeout=60)[0]
        if process.returncode != 0 or not into.exists():
            raise ProfileError(f"py-spy wrote nothing: {' '.join(said.split())[-200:]}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def profile(scenario: str, duration: str) -> str:
    """Return the page of a scenario. Raises ProfileError, BrokerError, SubprocessError or ValueError."""
    wanted, cores, ran = SCENARIOS[scenario], cores_apart(), modules()
    with tempfile.TemporaryDirectory(prefix="taipan-profile-") as directory:
        raw = Path(directory, "raw")
        core = cores[0] if wanted.pinned else None
        with running("taipan", core, wanted.settings, transport=wanted.transport) as (port, pid), recorded(pid, raw):
            free_other_threads(pid)
            row = load(scenario, port, pid, duration, cores[1])
        if "error" in row:
            raise ValueError(row["error"])
        if modules() != ran:
            raise ValueError("the sources of compiled modules were edited in the meantime")
        lines = raw.read_text(encoding="utf-8", errors="replace").splitlines()
    wrong = ", ".join(f"{name} {count}" for name, count in faults(row).items()) or "none"
    about = machine() | {"commit": commit(), "modules": ran, "duration": duration, "faults": wrong}
    return page(scenario, threads(lines), about)


def free_other_threads(pid: int) -> None:
    """Let all threads except the event loop's run on every core. py-spy stops the process thread by thread.

    If a thread had to wait for the loop's core, py-spy could stop it only while the loop rests. The samples would then
    show the loop at rest, or in long calls, far too often."""
    for thread in map(int, os.listdir(f"/proc/{pid}/task")):
        if thread != pid:
            os.sched_setaffinity(thread, os.sched_getaffinity(0))


def page(scenario: str, found: dict[str, Thread], about: dict[str, str]) -> str:
    """Return the page: first the loop's thread, then the store's, then other threads that worked."""
    intro = (
        f"Written by `make bench-profile ONLY={scenario} DUR={about['duration']}` at commit {about['commit']}; "
        f"{about['cpu']}, {about['system']}, {about['python']}, uvloop {about['uvloop']}. Taipan ran "
        f"{about['modules']}, its loop on the core that `make bench` gives it, its other threads on any. Faults under "
        f"this load: {about['faults']}. py-spy stops the process for each of its {RATE} looks a second: **shares are "
        "true, rates are not**, and so no rates are given. The page is of the whole run, from the first connection of "
        "the load to its last."
    )
    legend = (
        "A stack counts for the innermost function of ours in it (*own*; so what the interpreter, a library or the "
        "kernel does for a function is the function's), and for each function of ours in it (*inclusive*). Modules are "
        "compiled; those with `.py` ran interpreted. Waiting (until the network, the disk, the interpreter's lock or "
        "the other thread have something) is not work, but in a table of its own; a thread that has work but no core "
        "counts as working. Percentages of functions and kinds are of the thread's work."
    )
    parts = [f"# {scenario}: {SCENARIOS[scenario].text}", textwrap.fill(intro, 120), textwrap.fill(legend, 120)]
    loop = found.get("MainThread", Thread())
    if loop.work.total() < RESTS_BELOW * (loop.work.total() + loop.waits.total()):
        parts.append(textwrap.fill(RESTS, 120))
    order = [*TITLES, *sorted(set(found) - set(TITLES))]
    for name in order:
        thread = found.get(name, Thread())
        if thread.work.total():
            parts.append(f"## {TITLES.get(name, f'Thread {name}')}")
            parts += ["\n".join(table) for table in (time_table(thread), kind_table(thread), function_table(thread))]
    return "\n\n".join(parts) + "\n"


def time_table(thread: Thread) -> list[str]:
    """Return the table of work and waiting, and where the thread waits."""
    total = thread.work.total() + thread.waits.total()
    lines = ["| of its time | % | where |", "|---|---|---|", f"| works | {_percent(thread.work.total(), total)} | |"]
    waits: Counter[str] = Counter()
    for (kind, _), samples in thread.waits.items():
        waits[kind] += samples
    for kind, samples in waits.most_common():
        places = Counter({each.name: count for (other, each), count in thread.waits.items() if other == kind})
        where = ", ".join(f"{name} {_percent(count, total)}" for name, count in places.most_common(3))
        lines.append(f"| waits {kind} | {_percent(samples, total)} | {where} |")
    return lines


def kind_table(thread: Thread) -> list[str]:
    total = thread.work.total()
    lines = ["| of its work | % |", "|---|---|"]
    lines += [f"| {kind or 'computing'} | {_percent(count, total)} |" for kind, count in thread.work.most_common()]
    return lines


def function_table(thread: Thread) -> list[str]:
    """Return the table of functions by own time, then by inclusive time."""
    total = thread.work.total()
    lines = ["| function | in | own % | inclusive % | of its own |", "|---|---|---|---|---|"]
    order = sorted(thread.functions.items(), key=lambda each: (-each[1].own.total(), -each[1].inclusive, each[0]))
    for function, share in order:
        own = share.own.total()
        if own >= OWN_FROM * total or (share.inclusive >= INCLUSIVE_FROM * total and function.name != EVENT_LOOP):
            figures = f"{_percent(own, total)} | {_percent(share.inclusive, total)} | {_kinds(share, total)}"
            lines.append(f"| {function.name} | {function.file} | {figures} |")
    return lines


def _kinds(share: Share, total: int) -> str:
    telling = [(kind, n) for kind, n in share.own.most_common() if kind and n >= KIND_FROM * total]
    return ", ".join(f"{kind} {_percent(count, total)}" for kind, count in telling)


def _percent(part: int, total: int) -> str:
    return f"{part * 100 / total:.1f}"


def main() -> int:
    words = sys.argv[1:] or os.environ.get("ONLY", "").split()
    try:
        scenarios = chosen(words) if words else []
    except KeyError as error:
        print(f"unknown scenario {error}; there are {' '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    if not scenarios:
        print('name scenarios: make bench-profile ONLY="S10 S11"', file=sys.stderr)
        return 2
    subprocess.run(["make", "--silent", "-C", str(LOADGEN)], check=True)
    raise_file_limit()
    PAGES.mkdir(exist_ok=True)
    failed = 0
    for scenario in scenarios:
        try:
            if SCENARIOS[scenario].transport == "ssl" and not has_tls():
                raise ProfileError("the load generator was built without libssl-dev")
            text = profile(scenario, os.environ.get("DUR", "5"))
        except (ProfileError, BrokerError, subprocess.SubprocessError, ValueError) as error:
            print(f"{scenario}: no profile: {error}", file=sys.stderr)
            failed = 1
            continue
        path = PAGES / f"{scenario}.md"
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)} is written", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
