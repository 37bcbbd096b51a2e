"""Operations: how many bytecode instructions of Python a piece of work takes.

What a single instruction does in C (a dict copied, a deque searched) counts as one; where that may hide something,
the tests use keys that are compared by Python code (``Counted``).
"""

import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

LARGE = int(os.environ.get("TAIPAN_GROWTH", "100000"))
"""How many subscriptions, retained messages and the like a large node holds."""


def operations(work: Callable[[], object]) -> int:
    """Instructions of ``work`` and all that it calls."""
    return _monitored(work) if sys.version_info >= (3, 12) else _traced(work)


def _monitored(work: Callable[[], object]) -> int:
    """From Python 3.12 on, where a trace function misses instructions of code that it sees for the first time."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    count = 0

    def instruction(code: CodeType, offset: int) -> None:
        nonlocal count
        count += 1

    tool = monitoring.PROFILER_ID
    monitoring.use_tool_id(tool, "operations")
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, instruction)
    monitoring.set_events(tool, monitoring.events.INSTRUCTION)
    try:
        work()
    finally:
        monitoring.set_events(tool, monitoring.events.NO_EVENTS)
        monitoring.register_callback(tool, monitoring.events.INSTRUCTION, None)
        monitoring.free_tool_id(tool)
    return count


def _traced(work: Callable[[], object]) -> int:
    count = 0

    def opcode(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
        return opcode

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return opcode

    before = sys.gettrace()
    sys.settrace(call)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def settled(work: Callable[[], object], times: int = 3) -> int:
    """Of the cheapest of several goes: the first pays for caches."""
    return min(operations(work) for _ in range(times))


def linear(prepare: Callable[[int], Callable[[], object]], few: int = 100, many: int = 1000) -> None:
    """Work on ``many`` costs at most in proportion more than work on ``few``; ``prepare`` is not counted."""
    small = operations(prepare(few))
    large = operations(prepare(many))
    assert small > few, "that is no work on each"
    assert large <= small * many / few * 1.25, f"{few}: {small} operations, {many}: {large}"


class Counted(int):
    """An integer whose comparisons are operations."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    def __hash__(self) -> int:
        return hash(int(self))
