"""Which change of a retained message is the later one: decided from values alone."""

from taipan.broker.cluster.shared.retained_order import PROMPT, EntryOrigin, RetainedChange, is_later
from taipan.broker.cluster.shared.settling import Moment

HERE, THERE = "a@h", "b@h"
NOW = 100.0


def change(at: float, moment: Moment = (1, NOW), *, late: bool = False, restored: bool = False) -> RetainedChange:
    made = RetainedChange("key", "t", 0, at)
    made.moment, made.late, made.restored = moment, late, restored
    return made


def stays(
    there: EntryOrigin, ours: RetainedChange, *, clear: bool = False, settled: dict[str, Moment] | None = None
) -> bool:
    return is_later(there, ours, HERE, "uid of a", clear, settled or {}, NOW)


def test_the_later_date_wins() -> None:
    assert stays(EntryOrigin(11.0, THERE), change(10.0))
    assert not stays(EntryOrigin(9.0, THERE), change(10.0))


def test_the_greater_name_wins_at_the_same_date() -> None:
    assert stays(EntryOrigin(10.0, THERE), change(10.0))
    assert not stays(EntryOrigin(10.0, "A@h"), change(10.0))


def test_a_value_of_this_node_is_older_unless_the_change_is_from_before_its_start() -> None:
    assert not stays(EntryOrigin(11.0, HERE), change(10.0))
    assert stays(EntryOrigin(11.0, HERE), change(10.0, restored=True))


def test_the_answer_to_the_question_of_a_deletion_decides() -> None:
    deletion = EntryOrigin(11.0, THERE, until={"uid of a": (1, 50.0)})
    assert stays(deletion, change(99.0, (1, 50.0)))
    assert not stays(deletion, change(10.0, (1, 50.1)))
    # A later start of this node has made the change.
    assert not stays(deletion, change(10.0, (2, 1.0)))


def test_the_answer_to_the_question_of_this_clear_decides() -> None:
    settled: dict[str, Moment] = {"uid of b": (3, 70.0)}
    assert not stays(EntryOrigin(99.0, THERE, "uid of b", (3, 70.0)), change(10.0), clear=True, settled=settled)
    assert stays(EntryOrigin(9.0, THERE, "uid of b", (3, 70.1)), change(10.0), clear=True, settled=settled)


def test_a_prompt_clear_wins_whatever_the_dates_say() -> None:
    there = EntryOrigin(11.0, THERE)
    assert not stays(there, change(10.0, (1, NOW - PROMPT + 0.1)), clear=True)
    assert stays(there, change(10.0, (1, NOW - PROMPT)), clear=True)
    assert stays(there, change(10.0, late=True), clear=True)
    assert stays(there, change(10.0, restored=True), clear=True)
