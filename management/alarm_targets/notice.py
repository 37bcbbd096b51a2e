"""Notice: one message to a target about an alarm."""

from typing import Any, Final, Literal

import msgspec

from taipan.broker.observability.log_text import one_line

Event = Literal["activated", "deactivated", "test"]

_WORDS: Final[dict[Event, str]] = {"activated": "ALARM", "deactivated": "RESOLVED", "test": "TEST"}
_MAX_TEXT: Final = 500


class Notice(msgspec.Struct, frozen=True):
    """``alarm``: the record of the alarm as ``GET /alarms`` returns it."""

    event: Event
    node: str
    alarm: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the alarm."""
        return str(self.alarm["name"])

    @property
    def text(self) -> str:
        """The notice in one line, for people."""
        text = f"{_WORDS[self.event]} {self.name} on {self.node}: {self.alarm['message']}"
        return one_line(text[:_MAX_TEXT])

    def body(self) -> bytes:
        """The notice as JSON: event, node and text, then the alarm's record."""
        return msgspec.json.encode(
            {"event": self.event, "node": self.node, "text": self.text, **self.alarm}, enc_hook=str
        )
