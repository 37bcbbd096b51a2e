"""``python -m tools.soak.disk``: a long run on a fake disk, interrupted or disturbed at every single operation.

The run is made once. For power cuts, its log of disk operations is replayed, and a node is started with the data that
exists after each operation. For failing calls, the process forks at each call, so that every disturbed run starts where
the previous one did."""

import argparse
import asyncio
import gc
import logging
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random
from typing import NamedTuple

from taipan.broker.persistence.log.check_file import CheckFile, Digests
from taipan.broker.persistence.log.errors import StoreError
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.broker.store.store import CHECK_FILE, FILE
from taipan.broker.store.store_loss import MARKED, StoreLoss, find_loss
from tests.support.fake_disk import FakeDisk, Platter, broken, full

from .disk_node import outcome_of, rows_of, small
from .disk_promises import DiskPromises, Outcome
from .disk_run import Run

AFTERWARDS = 6
"""Number of batches that a disturbed run stores before its power fails, too."""
MOST_STEPS = 600
"""Maximum number of steps for these batches; a run that needs more does not recover."""


class Started(NamedTuple):
    """The state of a started node; ``None``: not examined. ``users``: digests of the access records."""

    outcome: Outcome | None
    users: Digests | None


class Checker:
    """Starts nodes from the data that power cuts leave."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "cut"
        self._disk = FakeDisk(f"cut-{id(self)}")
        self._outcomes: dict[tuple[tuple[int, int], ...], Outcome] = {}
        self.starts = 0
        self.failed_again = 0
        self.harmed = 0
        self.losses = 0

    def start(self, platter: Platter, random: Random | None, time: float) -> "Started | str":
        """Return the state of a node after a power cut at this point, or the reason why there is none. ``random``: as
        in ``Platter.power_cut``; sometimes the power fails again while the store is opened."""
        self._directory.mkdir()
        try:
            platter.power_cut(self._directory, random)
            if random is not None and random.random() < 0.3:
                self._fail_again(random)
            log, found, users, loss = self._open()
            log.checkpoint_and_close()
        except StoreError as error:
            return f"it does not open: {error}"
        finally:
            shutil.rmtree(self._directory)
        self.starts += 1
        if log.salvaged is not None:
            return f"it was found damaged: {log.salvaged}"
        if loss.batches is not None or loss.access:
            return f"a loss is reported although nothing is lost: {loss.batches} {loss.access}"
        key = tuple((seq, zlib.crc32(data)) for seq, data in found.items())
        outcome = self._outcomes.get(key)
        if outcome is None:
            if len(self._outcomes) > 20:
                self._outcomes.pop(next(iter(self._outcomes)))
            try:
                outcome = self._outcomes[key] = outcome_of(found, time)
            except Exception as error:
                return f"it cannot be restored: {error!r} at {_place(error)}"
        return Started(outcome, users)

    def start_harmed(self, platter: Platter, random: Random) -> "Started | str":
        """Return the state of a node with a truncated or missing write-ahead log. If there is no outcome, the node
        reports the loss of users."""
        self._directory.mkdir()
        try:
            platter.power_cut(self._directory, None)
            wal = self._directory / (FILE + "-wal")
            if not wal.exists():
                return Started(None, None)
            octets = wal.read_bytes()
            wal.unlink()
            if random.random() < 0.7:
                wal.write_bytes(octets[: random.randrange(len(octets) + 1)])
            log, _, users, loss = self._open()
            log.checkpoint_and_close()
        except StoreError as error:
            return f"it does not open: {error}"
        finally:
            shutil.rmtree(self._directory)
        self.harmed += 1
        self.losses += bool(loss.access)
        return Started(None, None if loss.access else users)

    def _open(self) -> tuple[SqliteLog, dict[int, bytes], Digests, StoreLoss]:
        self._disk.events.clear()
        check = CheckFile(self._directory / CHECK_FILE, self._disk.check_files())
        log = SqliteLog(self._directory / FILE, self._disk.name, check)
        check.read()
        log.open()
        found = dict(log.scan())
        tables = rows_of(found)
        users = tables.access()
        marked = any(table == MARKED for table, _, _ in tables.rows())
        loss = find_loss(check, log.last, users, marked, log.salvaged is not None)
        check.settle(log.last, users, bool(loss.access))
        return log, found, users, loss

    def _fail_again(self, random: Random) -> None:
        platter = Platter()
        platter.flushed = {each.name: bytearray(each.read_bytes()) for each in self._directory.iterdir()}
        self._open()[0].checkpoint_and_close()
        for event in self._disk.events[: random.randint(0, len(self._disk.events))]:
            platter.play(event)
        for each in self._directory.iterdir():
            each.unlink()
        platter.power_cut(self._directory, random)
        self.failed_again += 1


def complaints(started: Started | str, promises: DiskPromises) -> list[str]:
    """Return the broken promises."""
    if isinstance(started, str):
        return [started]
    found = [] if started.users is None else promises.check_users(started.users)
    return found if started.outcome is None else found + promises.check(started.outcome)


class Cuts:
    """Power cuts in one recorded run: after each of its operations ``numbers``, with and without torn writes."""

    def __init__(self, directory: Path, seed: int, operations: int) -> None:
        self.directory = directory
        self.seed = seed
        with small():
            self.run = asyncio.run(_recorded(directory, seed, operations))
        self.wrong = list(self.run.wrong)
        self.starts = 0
        self.failed_again = 0
        self.harmed = 0
        self.losses = 0

    @property
    def operations(self) -> int:
        return len(self.run.disk.events)

    def replay(self, numbers: Collection[int]) -> None:
        """Check the cuts; ``wrong`` contains the findings."""
        numbers = set(numbers)
        platter = Platter()
        promises = DiskPromises()
        facts = iter([*self.run.facts, (self.operations + 1, ("", ()))])
        at, fact = next(facts)
        checker = Checker(self.directory)
        now = self.run.node.clock.time
        for number, event in enumerate(self.run.disk.events, 1):
            platter.play(event)
            outcomes = (None, Random(f"{self.seed} {number}")) if number in numbers else ()
            started = [(checker.start(platter, random, now), "torn" if random else "clean") for random in outcomes]
            if outcomes:
                started.append((checker.start_harmed(platter, Random(f"{self.seed} {number} harm")), "harmed"))
            self._check(number, started, promises)
            while at <= number:
                promises.record(fact)
                at, fact = next(facts)
            # What clients sent and read now, before the disk did anything else, may end promises as well as make some.
            self._check(number, started, promises)
        self.starts = checker.starts
        self.failed_again = checker.failed_again
        self.harmed = checker.harmed
        self.losses = checker.losses

    def _check(self, number: int, started: list[tuple[Started | str, str]], promises: DiskPromises) -> None:
        for each, how in started:
            found = complaints(each, promises)
            self.wrong += [f"power cut after {number}, {how}: {each}" for each in found]


class Failures:
    """One run for each call of ``numbers`` in which the disk fails: once, for a while, or because it is full for a
    while."""

    HOW = ("once", "broken", "full")

    def __init__(self, directory: Path, seed: int, operations: int) -> None:
        self.directory = directory
        self.seed = seed
        self.operations = operations
        self.wrong: list[str] = []
        self.runs: Counter[str] = Counter()
        self.calls = 0

    def play(self, numbers: Callable[[int], bool], tell: Callable[[str], None] = lambda _: None) -> None:
        """Fail the calls that ``numbers`` selects; ``wrong`` contains the findings."""
        with small():
            asyncio.run(self._play(numbers, tell))

    async def _play(self, numbers: Callable[[int], bool], tell: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        run = Run(self.directory, self.seed)
        disk = run.disk
        disturbed = ""
        begun = Counter[str]()

        def disturb() -> None:
            """Fork a child for each call of the writer's next job and for each kind of failure, one after the other."""
            nonlocal disturbed
            if disturbed:
                return
            if not (child := os.fork()):
                # How many calls it makes.
                before = disk.calls
                run.node.writer.step()
                os._exit(min(disk.calls - before, 255))
            _, status = os.waitpid(child, 0)
            for number in range(disk.calls + 1, disk.calls + 1 + os.waitstatus_to_exitcode(status)):
                for how in self.HOW if numbers(number) else ():
                    reader, writer = os.pipe()
                    if not (child := os.fork()):
                        gc.disable()  # it would only examine the parent's objects
                        # The child continues with the loop in its present state.
                        asyncio._set_running_loop(loop)
                        os.close(reader)
                        disturbed = f"{how} {number} {writer}"
                        disk.fail = _failing(how, number, Random(f"{self.seed} {number}"))
                        begun["batches"] = run.node.writer.appended
                        begun["steps"] = run.steps
                        return
                    os.close(writer)
                    with os.fdopen(reader, "rb") as pipe:
                        report = pipe.read().decode()
                    _, status = os.waitpid(child, 0)
                    if status or report:
                        self.wrong.append(f"call {number} fails, {how}: {report or f'status {status:#x}'}")
                    self.runs[how] += 1
                if number % 500 == 0:
                    tell(f"  {number} calls, {sum(self.runs.values())} runs, {len(self.wrong)} wrong")

        run.before_writing = disturb

        def go_on(run: Run) -> bool:
            if not disturbed:
                return len(disk.events) < self.operations
            late = run.steps - begun["steps"] > MOST_STEPS
            return not late and (run.node.writer.appended < begun["batches"] + AFTERWARDS or run.node.writer.trouble)

        try:
            await run.play(go_on)
            text = "\n".join(run.wrong)
        except BaseException as error:
            if not disturbed:
                raise
            text = f"{error!r} at {_place(error)}"
        if not disturbed:
            self.calls = disk.calls
            self.wrong += run.wrong
            return
        try:
            if not text:
                text = "\n".join(self._after(run, begun["batches"], disturbed))
            os.write(int(disturbed.split()[2]), text[:60_000].encode())
        except BaseException as error:
            os.write(2, f"{disturbed}: {error!r} at {_place(error)}\n".encode())
            os._exit(3)
        # Do not end any of the parent's objects here.
        os._exit(0)

    def _after(self, run: Run, batches: int, disturbed: str) -> list[str]:
        if run.node.writer.appended < batches + AFTERWARDS or run.node.writer.trouble:
            return [f"it did not recover within {MOST_STEPS} steps"]
        platter = Platter()
        for event in run.disk.events:
            platter.play(event)
        checker = Checker(self.directory)
        now = run.node.clock.time
        for random in (None, Random(disturbed)):
            wrong = complaints(checker.start(platter, random, now), run.promises)
            if wrong:
                return [f"power cut afterwards, {'torn' if random else 'clean'}: {each}" for each in wrong]
        return []


def _failing(how: str, number: int, random: Random) -> Callable[[str, int], Exception | None]:
    """Return the kind of failure from call ``number`` on: this call, all for a while, or those that need space."""
    last = number if how == "once" else number + random.randint(2, 60)

    def fail(kind: str, call: int) -> Exception | None:
        if call > last:
            return None
        if how == "full":
            return full() if kind == "write" else None
        return broken(kind)

    return fail


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    place = ""
    while trace is not None:
        place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno} < {place}"
        trace = trace.tb_next
    return place


async def _recorded(directory: Path, seed: int, operations: int) -> Run:
    run = Run(directory, seed)
    await run.play(lambda each: len(each.disk.events) < operations)
    return run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.soak.disk", description=__doc__)
    parser.add_argument("--operations", type=int, default=4000, help="of the disk, in the run that is disturbed")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="disturb only every Nth")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    logging.disable()  # refusals by the thousand
    began = time.monotonic()
    print(f"disk seed={options.seed} operations={options.operations} every={options.every}", flush=True)
    with tempfile.TemporaryDirectory(prefix="taipan-disk-") as name:
        directory = Path(name)
        (directory / "run").mkdir()
        cuts = Cuts(directory / "run", options.seed, options.operations)
        cuts.replay(range(1, cuts.operations + 1, options.every))
        run = cuts.run
        print(
            f"power cuts: operations={cuts.operations} starts={cuts.starts} "
            f"power_failed_again={cuts.failed_again} batches={run.node.writer.appended} "
            f"messages={len(run.promises.messages)} promised={run.promises.promised} "
            f"compactions={run.node.compactions} harmed={cuts.harmed} losses_told={cuts.losses} "
            f"wrong={len(cuts.wrong)}",
            flush=True,
        )
        (directory / "failing").mkdir()
        failures = Failures(directory / "failing", options.seed, options.operations)
        failures.play(lambda number: number % options.every == 0, lambda text: print(text, flush=True))
        runs = " ".join(f"{how}={count}" for how, count in failures.runs.items())
        print(f"failing calls: calls={failures.calls} runs: {runs} wrong={len(failures.wrong)}")
    wrong = cuts.wrong + failures.wrong
    for each in wrong[:20]:
        print(each, file=sys.stderr)
    print(f"{'FAILED' if wrong else 'ok'} seconds={time.monotonic() - began:.0f} seed={options.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
