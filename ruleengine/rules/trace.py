"""RuleTrace: the last evaluations of one rule, kept while its trace is active."""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from ..functions.budget import Budget
from ..functions.values import encode_json
from ..records import EvaluationRecord, TracedAction

if TYPE_CHECKING:
    from ..event import Event

MAX_TEXT_LENGTH: Final = 4096
MAX_TRACED_ROWS: Final = 20
MAX_TRACED_ACTIONS: Final = 100


def sample(value: object) -> str:
    """Return a value as JSON, truncated for a trace; a value without JSON, or one that is too large, is a word in
    brackets."""
    try:
        text = encode_json(_beginning(value, [MAX_TEXT_LENGTH + 16]), Budget())
    except ValueError as error:
        text = f"({error})"
    return text if len(text) <= MAX_TEXT_LENGTH else text[:MAX_TEXT_LENGTH] + "..."


def _beginning(value: Any, left: list[int]) -> object:
    """Return the part of a value that its JSON in the trace shows: most values are small, and none is read beyond
    ``left`` characters."""
    kind = type(value)
    if kind is str or kind is bytes:
        taken = value[: max(left[0], 0) + 1]
        left[0] -= len(taken) + 2
        return taken
    left[0] -= 2
    if kind is list:
        return [_beginning(each, left) for each in takewhile(lambda _: left[0] > 0, value)]
    if kind is dict:
        return {
            _beginning(key, left): _beginning(each, left)
            for key, each in takewhile(lambda _: left[0] > 0, value.items())
        }
    return value


class Evaluation:
    """One evaluation: ``outcome`` is ``passed``, ``no_result`` or ``exception``."""

    __slots__ = ("actions", "at", "client_id", "event", "outcome", "reason", "rows", "topic")

    def __init__(self, event: Event) -> None:
        self.at = event.at
        self.event = event.kind.name
        self.topic = "" if event.message is None else event.message.topic[:MAX_TEXT_LENGTH]
        who = event.client if event.message is None else event.message.publisher
        self.client_id = "" if who is None else who.client_id
        self.outcome = ""
        self.reason = ""
        self.rows: list[str] = []
        self.actions: list[TracedAction] = []

    def passed(self, rows: list[dict[str, object]]) -> None:
        self.outcome = "passed"
        self.rows = [sample(row) for row in rows[:MAX_TRACED_ROWS]]

    def refused(self, outcome: str, reason: str = "") -> None:
        self.outcome = outcome
        self.reason = reason[:MAX_TEXT_LENGTH]

    def acted(self, action_id: str, outcome: str, reason: str = "") -> None:
        """Record the outcome of an action: ``success``, ``failed``, or ``taken``: the outcome comes later."""
        if len(self.actions) < MAX_TRACED_ACTIONS:
            self.actions.append(TracedAction(action_id, outcome, reason[:MAX_TEXT_LENGTH]))

    def record(self) -> EvaluationRecord:
        return EvaluationRecord(
            int(self.at * 1000),
            self.event,
            self.topic,
            self.client_id,
            self.outcome,
            self.reason,
            list(self.rows),
            list(self.actions),
        )


class RuleTrace:
    """The latest ``size`` evaluations, oldest first."""

    __slots__ = ("_evaluations",)

    def __init__(self, size: int) -> None:
        self._evaluations: deque[Evaluation] = deque(maxlen=size)

    def begin(self, event: Event) -> Evaluation:
        evaluation = Evaluation(event)
        self._evaluations.append(evaluation)
        return evaluation

    def records(self) -> list[EvaluationRecord]:
        return [each.record() for each in self._evaluations]
