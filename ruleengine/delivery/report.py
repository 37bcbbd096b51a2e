"""What became of rows: a failure, and who is told of a success or a failure that comes later."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..event import Event

Row = Mapping[str, Any]


class ActionFailed(Exception):
    """This row could not be dealt with; the text says why, in one line."""


class Report(Protocol):
    """Where an action that answers later tells how a row fared."""

    def success(self, count: int = 1) -> None: ...

    def failed(self, reason: str, row: Row | None = None, event: "Event | None" = None, count: int = 1) -> None:
        """Count it, keep it as the last error, and run the fallbacks where there is a ``row``."""
        ...
