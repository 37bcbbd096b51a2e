"""The outcome of a row: ``ActionFailed`` at once, or through a ``Report`` later."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..event import Event

Row = Mapping[str, object]


class ActionFailed(Exception):
    """The action failed for this row; the message is the reason in one line."""


class Report(Protocol):
    """Receives the outcome of a row whose action returned before it was known."""

    def success(self, count: int = 1) -> None: ...

    def failed(self, reason: str, row: Row | None = None, event: "Event | None" = None, count: int = 1) -> None:
        """Count the failure, store it as the last error, and run the fallbacks if there is a ``row``."""
        ...
