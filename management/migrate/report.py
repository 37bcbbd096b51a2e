"""MigrationReport: the result for each item that a migration has read, with its place."""

import re
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from taipan.broker.observability.log_text import one_line

Outcome = Literal["carried", "changed", "left_out", "wrong"]

_TITLES: Final[dict[str, str]] = {
    "carried": "carried",
    "changed": "changed",
    "left_out": "left out",
    "wrong": "wrong",
}
_MAX_SHOWN: Final = 200
_MAX_PLACE: Final = 4_200
"""Maximum length of a place in characters: the longest file name, and its line."""
_SECRET: Final = re.compile(
    r"(?!\S*(?:file|hash)\b|password file)"
    r"(\S*(?:passw|passphrase|secret|cookie|kpass|token|(?:auth|plugin)_opt_|bridge_identity|psk\b)[^\s:]*:?)\s+\S.*"
)
"""A key whose value may be a secret, and its value."""


class ReportLine(msgspec.Struct):
    """A line of the report. ``place``: ``file:line``, or ``file`` and an offset in it. ``what``: the key in the
    source. ``why``: its counterpart here, or why it has none."""

    outcome: Outcome
    place: str
    what: str
    why: str


class CannotMigrate(Exception):
    """Nothing is written. The report contains the reason, or else the message of this exception."""


class MigrationReport:
    """Entries in the order in which they were found."""

    def __init__(self) -> None:
        self.entries: list[ReportLine] = []
        self._known: set[tuple[str, ...]] = set()

    def carried(self, place: str, what: str, why: str = "") -> None:
        self.add("carried", place, what, why)

    def changed(self, place: str, what: str, why: str) -> None:
        self.add("changed", place, what, why)

    def left_out(self, place: str, what: str, why: str) -> None:
        self.add("left_out", place, what, why)

    def wrong(self, place: str, what: str, why: str) -> None:
        """Report an error: nothing is written."""
        self.add("wrong", place, what, why)

    def amend(self, outcome: Outcome, place: str, what: str, why: str) -> None:
        """Replace what was reported as carried from ``place``; without such an entry, add one."""
        for entry in self.entries:
            if entry.place == one_line(place)[:_MAX_PLACE] and entry.outcome == "carried":
                entry.outcome, entry.why = outcome, one_line(why)
                return
        self.add(outcome, place, what, why)

    def add(self, outcome: Outcome, place: str, what: str, why: str) -> None:
        """Add an entry, unless there is an equal one."""
        shown = one_line(what)
        secret = _SECRET.match(shown)
        shown = f"{secret[1]} ..." if secret is not None else shown[:_MAX_SHOWN]
        known = (outcome, place, shown, why)
        if known not in self._known:  # one line can be about two listeners
            self._known.add(known)
            self.entries.append(ReportLine(outcome, one_line(place)[:_MAX_PLACE], shown, one_line(why)[:_MAX_PLACE]))

    def of(self, *outcomes: Outcome) -> list[ReportLine]:
        return [entry for entry in self.entries if entry.outcome in outcomes]

    @property
    def failed(self) -> bool:
        return any(entry.outcome == "wrong" for entry in self.entries)

    @staticmethod
    def lines(entries: Iterable[ReportLine]) -> Iterable[str]:
        """Yield the lines for an operator."""
        for entry in entries:
            why = f": {entry.why}" if entry.why else ""
            yield f"{entry.place}: {_TITLES[entry.outcome]}: {entry.what}{why}"

    def comments(self) -> Iterable[str]:
        """Return the keys without a counterpart, as comments for the top of the configuration."""
        for entry in self.of("changed", "left_out"):
            yield f"{entry.place}: {entry.what}: {_TITLES[entry.outcome]}: {entry.why}"
