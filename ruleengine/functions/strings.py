"""Strings: case, whitespace, parts and padding. Positions count characters from 0.

Each byte that is not UTF-8 counts as one character and remains unchanged."""

from __future__ import annotations

from typing import Final

from .function import BYTES, INTEGER, LIST, TEXT, FunctionContext, one_of, register
from .graphemes import count_graphemes, graphemes, is_plain
from .undefined import UNDEFINED
from .values import restore, value_text

WHITE_SPACE: Final = " \t\n\v\f\r\x85\u200e\u200f\u2028\u2029"

_SIDE: Final = one_of("leading", "trailing")
_SEPARATOR_OR_LIST: Final = TEXT.either(LIST)
_SPLIT_MODE: Final = one_of("notrim", "leading", "leading_notrim", "trailing", "trailing_notrim")


@register("lower", TEXT)
def lower(text: str) -> str:
    """Convert all letters to lower case."""
    return text.lower()


@register("upper", TEXT)
def upper(text: str) -> str:
    """Convert all letters to upper case."""
    return text.upper()


@register("trim", TEXT)
def trim(text: str) -> str:
    """Remove whitespace at both ends."""
    return text.strip(WHITE_SPACE)


@register("ltrim", TEXT)
def trim_left(text: str) -> str:
    """Remove whitespace at the beginning."""
    return text.lstrip(WHITE_SPACE)


@register("rtrim", TEXT)
def trim_right(text: str) -> str:
    """Remove whitespace at the end."""
    return text.rstrip(WHITE_SPACE)


@register("reverse", TEXT, context=True)
def reverse(context: FunctionContext, text: str) -> str:
    """Reverse the order of the characters."""
    if is_plain(text):
        return text[::-1]
    return "".join(reversed(graphemes(text, context.budget)))


@register("strlen", TEXT, context=True)
def length(context: FunctionContext, text: str) -> int:
    """Return the number of characters."""
    return count_graphemes(text, context.budget)


@register("substr", TEXT, INTEGER, INTEGER, optional=1, context=True)
def substring(context: FunctionContext, text: str, start: int, count: int | None = None) -> str:
    """Return the characters from a position on, all or a number of them."""
    if start < 0 or (count is not None and count < 0):
        raise ValueError("a position and a length must not be negative")
    end = None if count is None else start + count
    if is_plain(text):
        return text[start:end]
    return "".join(graphemes(text, context.budget)[start:end])


def _restored(parts: list[str]) -> list[str | bytes]:
    return [restore(part) for part in parts]


@register("split", TEXT, TEXT, _SPLIT_MODE, optional=1, context=True)
def split(context: FunctionContext, text: str, separator: str, mode: str = "") -> list[str | bytes]:
    """Return the parts between separators, or before and after the first (leading) or last (trailing) one; notrim keeps
    empty parts."""
    if separator == "":
        parts = [text]
    elif mode.startswith("leading"):
        parts = text.split(separator, 1)
    elif mode.startswith("trailing"):
        parts = text.rsplit(separator, 1)
    else:
        context.budget.step(text.count(separator))
        parts = text.split(separator)
    return _restored(parts if mode.endswith("notrim") else [part for part in parts if part])


@register("tokens", TEXT, TEXT, one_of("nocrlf"), optional=1, context=True)
def tokens(context: FunctionContext, text: str, separators: str, ends: str = "") -> list[str | bytes]:
    """Return the non-empty parts between any of the characters; with 'nocrlf', line ends are separators, too."""
    if ends:
        separators += "\r\n"
    if not separators:
        return _restored([text] if text else [])
    context.budget.step(sum(map(text.count, set(separators))))
    table = dict.fromkeys(map(ord, separators[1:]), separators[0])
    return _restored([part for part in text.translate(table).split(separators[0]) if part])


@register("concat", TEXT, TEXT)
def concat(left: str, right: str) -> str:
    """Concatenate two strings."""
    return left + right


@register("pad", TEXT, INTEGER, one_of("leading", "trailing", "both"), TEXT, optional=2, context=True)
def pad(context: FunctionContext, text: str, size: int, side: str = "trailing", fill: str = " ") -> str:
    """Pad the string with as many fills as characters are missing to the size; each fill counts as one, whatever its
    length."""
    lacking = size - count_graphemes(text, context.budget)
    if lacking <= 0:
        return text
    context.budget.take_bytes(lacking * len(fill))
    if side == "leading":
        return fill * lacking + text
    if side == "trailing":
        return text + fill * lacking
    return fill * (lacking // 2) + text + fill * (lacking - lacking // 2)


@register("replace", TEXT, TEXT, TEXT, one_of("all", "leading", "trailing"), optional=1, context=True)
def replace(context: FunctionContext, text: str, wanted: str, by: str, which: str = "all") -> str:
    """Replace every hit, or only the first or the last one."""
    if wanted == "":
        return text
    if which == "leading":
        return text.replace(wanted, by, 1)
    if which == "trailing":
        before, hit, after = text.rpartition(wanted)
        return before + by + after if hit else text
    if len(by) > len(wanted):
        context.budget.take_bytes(text.count(wanted) * (len(by) - len(wanted)))
    return text.replace(wanted, by)


@register("ascii", BYTES)
def first_byte(data: bytes) -> int:
    """Return the number of the first byte."""
    if not data:
        raise ValueError("the string is empty")
    return data[0]


@register("find", TEXT, TEXT, _SIDE, optional=1)
def find(text: str, wanted: str, side: str = "leading") -> str:
    """Return the string from the first or last match to its end; empty if there is no match."""
    if wanted == "":
        return text
    position = text.find(wanted) if side == "leading" else text.rfind(wanted)
    return "" if position < 0 else text[position:]


def _as_text(context: FunctionContext, value: object) -> str:
    text = value_text(value, context.budget)
    return text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text


def _join(context: FunctionContext, separator: str, parts: list[str]) -> str:
    context.budget.take_bytes(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


# One argument is the list; two are separator and list, in EMQX's order.
@register("join_to_string", _SEPARATOR_OR_LIST, LIST, optional=1, context=True)
def join(context: FunctionContext, first: str | list[object], second: list[object] | None = None) -> str:
    """Join the elements, converted as by `str`, with a separator, by default ', '."""
    if second is None:
        if isinstance(first, str):
            raise ValueError("a separator requires a list to join")
        separator, elements = ", ", first
    else:
        if not isinstance(first, str):
            raise ValueError("argument 1 is a list, expected a string")
        separator, elements = first, second
    context.budget.step(len(elements))
    return _join(context, separator, [_as_text(context, each) for each in elements])


@register("join_to_sql_values_string", LIST, context=True)
def join_sql(context: FunctionContext, elements: list[object]) -> str:
    """Join the elements as SQL literals with ', ': strings quoted, quotes in them doubled, NULL for undefined
    values."""
    context.budget.step(len(elements))
    parts = []
    for each in elements:
        text = _as_text(context, each)
        if each is None or each is UNDEFINED:
            parts.append("NULL")
        elif type(each) in (bool, int, float):
            parts.append(text)
        else:
            parts.append("'" + text.replace("'", "''") + "'")
    return _join(context, ", ", parts)
