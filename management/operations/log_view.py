"""LogView: the latest lines of the log of a node, as operators read them over the API."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from taipan.broker.observability.log_lines import write_waiting
from taipan.broker.observability.log_ring import ring

from .node_calls import NodeCalls

MAX_LINES = 1000
"""Maximum number of lines of one answer."""


Level = Literal["debug", "info", "warning", "error", "critical"]


class LogLinesQuery(msgspec.Struct, kw_only=True):
    """``level``: the lowest one. ``like_text``: a part of the line. ``after``: the number of the last known line."""

    level: Level = "debug"
    like_text: Annotated[str, Meta(max_length=256)] = msgspec.field(default="", name="_like_text")
    after: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_LINES)] = msgspec.field(default=MAX_LINES, name="_limit")


class LogLine(msgspec.Struct):
    """A line as the node has written it, in its format. ``number``: from 1, since the process started."""

    number: int
    level: str
    text: str


class LogLines(msgspec.Struct):
    """The latest matching lines, oldest first. ``last``: the number of the latest line, for ``after``."""

    lines: list[LogLine]
    last: int


class LogView:
    """The log of this node."""

    def __init__(self, calls: NodeCalls) -> None:
        calls.serve(self.lines_here)

    def lines_here(self, query: LogLinesQuery) -> LogLines:
        """Return the latest matching lines of this node. A number that is larger than the latest one is of the process
        before: then all lines match."""
        write_waiting()
        after = query.after if query.after <= ring.last else 0
        found = ring.after(after, query.level.upper(), query.like_text, query.limit)
        return LogLines([LogLine(*each) for each in found], ring.last)
