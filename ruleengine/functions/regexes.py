"""Regular expressions with RE2, whose time is proportional to the text for every expression."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]  # it comes without types

from .budget import BudgetExceeded
from .function import BYTES, FunctionContext, register

MAX_EXPRESSION: Final = 4096
HIT_STEPS: Final = 4
"""Steps for one hit: building it takes as long as some list elements."""

WORK_PER_STEP: Final = 128
"""Bytes times instructions of the compiled expression that cost one step: a microsecond of the slowest way to
search."""
FREE: Final = 8
"""Number of instructions of an expression that is searched for at full speed in any text."""
MAX_TIME: Final = 0.05
"""Maximum seconds of processor time for all searches of one replacement, because each may read the whole text."""

_SHORT: Final = 1024
_MEMORY: Final = 1 << 19


@lru_cache(maxsize=128)
def _compile(expression: bytes, groups: bool) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = not groups
    options.max_mem = _MEMORY
    return re2.compile(expression, options)


def _compiled(expression: bytes, groups: bool) -> Any:
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"the regular expression has {len(expression)} bytes, more than {MAX_EXPRESSION}")
    try:
        return _compile(expression, groups)
    except re2.error as error:
        text = error.args[0] if error.args else error
        reason = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        raise ValueError(f"the regular expression is invalid: {reason}") from error


def _charge(context: FunctionContext, data: bytes, compiled: Any) -> None:
    """Charge one search through the whole text."""
    work = len(data) * (max(compiled.programsize, compiled.reverseprogramsize) - FREE)
    try:
        context.budget.step(max(work // WORK_PER_STEP, 0))
    except BudgetExceeded:
        raise BudgetExceeded(
            f"the regular expression, of {compiled.programsize} instructions, needs too many steps "
            f"for {len(data)} bytes"
        ) from None


def _replacement(by: bytes, groups: int) -> list[bytes | int]:
    """Return the replacement in pieces: bytes, and numbers of groups, 0 for the whole hit."""
    pieces: list[bytes | int] = []
    plain = bytearray()
    index = 0

    def put(group: int) -> None:
        nonlocal plain
        if group > groups:
            raise ValueError(f"the replacement names the group {group}, the expression has {groups}")
        pieces.extend((bytes(plain), group))
        plain = bytearray()

    while index < len(by):
        here, following = by[index : index + 1], by[index + 1 : index + 2]
        if here == b"&":
            put(0)
        elif here == b"\\" and following.isdigit():
            put(int(following))
            index += 1
        elif here == b"\\" and following == b"g" and (group := by[index + 2 : index + 3]).isdigit():
            put(int(group))
            index += 2
        elif here == b"\\" and following:
            plain += following
            index += 1
        else:
            plain += here
        index += 1
    pieces.append(bytes(plain))
    return pieces


@register("regex_match", BYTES, BYTES, context=True)
def matches(context: FunctionContext, data: bytes, expression: bytes) -> bool:
    """Return whether the expression matches anywhere in the string."""
    compiled = _compiled(expression, groups=False)
    _charge(context, data, compiled)
    return compiled.search(data) is not None


@register("regex_replace", BYTES, BYTES, BYTES, context=True)
def replace(context: FunctionContext, data: bytes, expression: bytes, by: bytes) -> bytes:
    r"""Replace all hits; in the replacement `&` is the hit, `\1` or `\g1` a group, `\&` the character."""
    compiled = _compiled(expression, groups=True)
    _charge(context, data, compiled)
    until = time.thread_time() + MAX_TIME
    pieces = _replacement(by, compiled.groups)
    found: list[bytes] = []
    end = 0
    for hit in compiled.finditer(data):
        context.budget.step(HIT_STEPS)
        if len(data) > _SHORT and time.thread_time() > until:
            raise ValueError(
                f"the regular expression needs more than {MAX_TIME} seconds of processor time for {len(data)} bytes"
            )
        start, stop = hit.span()
        found.append(data[end:start])
        new = b"".join(each if isinstance(each, bytes) else hit.group(each) or b"" for each in pieces)
        context.budget.take_bytes(len(new))
        found.append(new)
        end = stop
    return b"".join([*found, data[end:]])
