"""A whole node over a fake disk: whatever the disk does in a long run, clients find what they were promised.

All of its operations, rather than a sample: ``python -m tools.soak.disk``.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from taipan.broker.persistence.log.check_file import CheckFile
from taipan.broker.persistence.log.log_writer import Append
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.broker.persistence.node_journal import NodeJournal
from taipan.broker.store.recovery import RecoveredState
from taipan.broker.store.store import CHECK_FILE
from tools.soak.disk import Cuts, Failures
from tools.soak.disk_node import ManualWriter
from tools.soak.disk_run import Run

pytestmark = [pytest.mark.long, pytest.mark.slow]

SEED = 7
OPERATIONS = 4000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Refusals and troubles are logged by the hundred, and this is about something else."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def sample(every: int, operations: int) -> set[int]:
    """Some of all operations, the first and the last ones among them."""
    edges = {*range(1, 16), *range(operations - 3, operations + 1)}
    return edges | {number + Random(number).randrange(every) for number in range(1, operations - every, every)}


def around_the_check_file(run: Run) -> set[int]:
    """The operations next to some of those of the check file that are flushed."""
    events = run.disk.events
    flushed = [number for number, event in enumerate(events, 1) if event[:2] == ("sync", CHECK_FILE)]
    return {number + step for number in flushed[:40] for step in (-2, -1, 0, 1)}


@pytest.mark.timeout(120)
def test_the_power_fails_in_a_long_run(tmp_path: Path) -> None:
    cuts = Cuts(tmp_path, SEED, OPERATIONS)
    cuts.replay(sample(37, cuts.operations) | around_the_check_file(cuts.run))
    assert not cuts.wrong, cuts.wrong[:10]
    assert cuts.starts > 200 and cuts.failed_again > 10 and cuts.run.promises.promised > 3000
    assert cuts.harmed > 50 and cuts.losses > 5
    assert cuts.run.node.compactions >= 2 and cuts.run.node.log.first > 20


@pytest.mark.timeout(120)
def test_calls_fail_in_a_long_run(tmp_path: Path) -> None:
    failures = Failures(tmp_path, SEED, 1200)
    numbers = sample(150, 1200)
    failures.play(lambda number: number > 15 and number in numbers)
    assert not failures.wrong, failures.wrong[:10]
    assert all(failures.runs[how] > 5 for how in Failures.HOW)


# --- these checks can fail ------------------------------------------------------------------------------------------


def found_with(tmp_path: Path) -> str:
    cuts = Cuts(tmp_path, SEED, OPERATIONS)
    cuts.replay(range(1, cuts.operations, 211))
    return "\n".join(cuts.wrong)


@pytest.mark.interpreted
def test_an_acknowledgement_before_the_disk_has_it_is_found(tmp_path: Path) -> None:
    late: list[Append] = []

    def hasty(writer: ManualWriter, *_: object) -> None:
        job = writer._jobs.popleft()
        if isinstance(job, Append):
            for each in late:
                writer._log.append(each.seq, each.data, each.access)
            late[:] = [job]
            writer.appended += 1
            writer._journal._written(job.seq)

    with patch.object(ManualWriter, "_do", hasty):
        found = found_with(tmp_path)
    assert "was lost" in found and "inbound packet id" in found


def test_a_flush_that_is_left_out_is_found(tmp_path: Path) -> None:
    connect = SqliteLog._connect

    def careless(log: SqliteLog) -> object:
        db = connect(log)
        db.execute("PRAGMA synchronous=OFF")
        return db

    with patch.object(SqliteLog, "_connect", careless):
        found = found_with(tmp_path)
    assert "a loss is reported although nothing is lost" in found and "found damaged" in found


def test_a_check_file_that_is_written_too_early_too_late_or_not_is_found(tmp_path: Path) -> None:
    def cuts(method: str, instead: Callable[..., object]) -> str:
        with patch.object(CheckFile, method, instead):
            cuts = Cuts(tmp_path, SEED, OPERATIONS)
            cuts.replay(around_the_check_file(cuts.run))
            return "\n".join(cuts.wrong)

    told = "a loss is reported although nothing is lost"
    note = CheckFile.note
    assert told in cuts("note", lambda check, seq: note(check, seq + 1))
    assert told in cuts("prepare", lambda *_: None)
    # What was taken back is not told when the digests from before stay where they are.
    assert "and must be one of" in cuts("confirm", lambda check, _, after: setattr(check, "_actual", after))


@pytest.mark.parametrize(
    ("kind", "method", "text"),
    [
        (RecoveredState, "_released", "delivered with QoS 2"),
        (RecoveredState, "_received", "inbound packet id"),
        (RecoveredState, "_sent", "that is forgotten"),
        (RecoveredState, "_unsubscribed", "(-2: is not there)"),
        (RecoveredState, "_subscribed", "must be 2"),
        (RecoveredState, "_ended", "cannot be restored"),
        (RecoveredState, "_retained", "but must be one of"),
        pytest.param(NodeJournal, "will_stored", "will-", marks=pytest.mark.interpreted),
    ],
)
def test_what_is_forgotten_is_found(tmp_path: Path, kind: type, method: str, text: str) -> None:
    with patch.object(kind, method, lambda *_, **__: 0):
        assert text in found_with(tmp_path)
