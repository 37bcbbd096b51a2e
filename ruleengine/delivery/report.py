"""The outcome of a row: ``ActionFailed`` at once, or through a ``Report`` later."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..event import Event

Row = Mapping[str, object]


class ActionFailed(Exception):
    """The action failed for this row; the text gives the reason in one line."""


class Report(Protocol):
    """Gets the outcome of a row whose action could not decide at once."""

    def success(self, count: int = 1) -> None: ...

    def failed(self, reason: str, row: Row | None = None, event: "Event | None" = None, count: int = 1) -> None:
        """Count it, keep it as the last error, and run the fallbacks where there is a ``row``."""
        ...
