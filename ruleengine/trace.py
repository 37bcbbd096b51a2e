"""Trace: the last evaluations of one rule, kept while somebody asked for it."""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from .budget import Budget
from .functions.values import encode_json

if TYPE_CHECKING:
    from .event import Event

LONGEST_TEXT: Final = 4096
MOST_ROWS: Final = 20
MOST_ACTIONS: Final = 100


def sample(value: Any) -> str:
    """A value as JSON, cut to what fits into a trace; what has no JSON, or is too large, as a word in brackets."""
    try:
        text = encode_json(_beginning(value, [LONGEST_TEXT + 16]), Budget())
    except ValueError as error:
        text = f"({error})"
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."


def _beginning(value: Any, room: list[int]) -> Any:
    """As much of a value as its JSON shows of it: most are small, and none is looked at beyond ``room`` characters."""
    kind = type(value)
    if kind is str or kind is bytes:
        taken = value[: max(room[0], 0) + 1]
        room[0] -= len(taken) + 2
        return taken
    room[0] -= 2
    if kind is list:
        return [_beginning(each, room) for each in takewhile(lambda _: room[0] > 0, value)]
    if kind is dict:
        return {
            _beginning(key, room): _beginning(each, room)
            for key, each in takewhile(lambda _: room[0] > 0, value.items())
        }
    return value


class Evaluation:
    """One evaluation: ``outcome`` is ``passed``, ``no_result`` or ``exception``."""

    __slots__ = ("actions", "at", "client_id", "event", "outcome", "reason", "rows", "topic")

    def __init__(self, event: Event) -> None:
        self.at = event.at
        self.event = event.kind.name
        self.topic = "" if event.message is None else event.message.topic[:LONGEST_TEXT]
        who = event.client if event.message is None else event.message.publisher
        self.client_id = "" if who is None else who.client_id
        self.outcome = ""
        self.reason = ""
        self.rows: list[str] = []
        self.actions: list[dict[str, str]] = []

    def passed(self, rows: list[dict[str, Any]]) -> None:
        self.outcome = "passed"
        self.rows = [sample(row) for row in rows[:MOST_ROWS]]

    def refused(self, outcome: str, reason: str = "") -> None:
        self.outcome = outcome
        self.reason = reason[:LONGEST_TEXT]

    def acted(self, action_id: str, outcome: str, reason: str = "") -> None:
        """``success``, ``failed``, or ``taken``: the action answers later."""
        if len(self.actions) < MOST_ACTIONS:
            self.actions.append({"id": action_id, "outcome": outcome, "reason": reason[:LONGEST_TEXT]})

    def record(self) -> dict[str, Any]:
        return {
            "at": int(self.at * 1000),
            "event": self.event,
            "topic": self.topic,
            "clientid": self.client_id,
            "outcome": self.outcome,
            "reason": self.reason,
            "rows": list(self.rows),
            "actions": list(self.actions),
        }


class Trace:
    """The latest ``size`` evaluations, the oldest first."""

    __slots__ = ("_kept",)

    def __init__(self, size: int) -> None:
        self._kept: deque[Evaluation] = deque(maxlen=size)

    def begin(self, event: Event) -> Evaluation:
        evaluation = Evaluation(event)
        self._kept.append(evaluation)
        return evaluation

    def records(self) -> list[dict[str, Any]]:
        return [each.record() for each in self._kept]
