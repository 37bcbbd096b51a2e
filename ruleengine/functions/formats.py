"""`sprintf`: text from a format with the directives of Erlang's `io:format`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from .budget import Budget
from .function import ANY, LIST, TEXT, FunctionContext, register
from .undefined import UNDEFINED
from .values import MAX_DEPTH, describe

_DIRECTIVE: Final = re.compile(r"~(-?\d+|\*)?(?:\.(\d+|\*)?)?(?:\.(.))?([tlkK]*)(.)?", re.ASCII | re.DOTALL)
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_PRINTABLE: Final = frozenset([*range(32, 127), 8, 9, 10, 11, 12, 13, 27])
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MAX_PRECISION: Final = 253


def _quoted(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(each, each) for each in text) + '"'


def _word(value: object) -> str | None:
    """Return the word for undefined, null or a boolean, otherwise None."""
    if value is UNDEFINED:
        return "undefined"
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    return None


def _term(value: object, pretty: bool, budget: Budget, depth: int = 0) -> str:
    """Return the value as Erlang writes a term; `pretty` shows printable bytes as text, as `~p` does and `~w` does
    not."""
    budget.step()
    if depth > MAX_DEPTH:
        raise ValueError(f"the value is nested deeper than {MAX_DEPTH}")
    word = _word(value)
    if word is not None:
        return word
    if type(value) is float:
        return _shortest(value)
    if type(value) is list:
        budget.step(len(value))
        if pretty and value and all(type(each) is int and each in _PRINTABLE for each in value):
            return _quoted("".join(map(chr, value)))
        return "[" + ",".join(_term(each, pretty, budget, depth + 1) for each in value) + "]"
    if type(value) is dict:
        pairs = (f"{_term(k, pretty, budget)} => {_term(v, pretty, budget, depth + 1)}" for k, v in value.items())
        return "#{" + ",".join(pairs) + "}"
    if type(value) is str or type(value) is bytes:
        budget.take_bytes(len(value))
        budget.step(len(value) // 8)
    if type(value) is str:
        if pretty and all(each.isprintable() or each in _ESCAPES for each in value):
            return "<<" + _quoted(value) + ("" if value.isascii() else "/utf8") + ">>"
        value = value.encode()
    if type(value) is bytes:
        budget.step(len(value))
        if pretty and all(each in _PRINTABLE for each in value):
            return "<<" + (_quoted(value.decode("ascii")) if value else "") + ">>"
        return "<<" + ",".join(map(str, value)) + ">>"
    return str(value)


def _shortest(number: float) -> str:
    text = repr(number)
    if "e" not in text:
        return text
    digits, exponent = text.split("e")
    return f"{digits if '.' in digits else digits + '.0'}e{int(exponent)}"


def _plain(value: object, budget: Budget) -> str:
    """Return the output of `~s`: strings, words such as true, lists of characters and strings; not numbers."""
    if type(value) is str:
        return value
    if type(value) is bytes:
        return value.decode("utf-8", "surrogateescape")
    word = _word(value)
    if word is not None:
        return word
    if type(value) is list:
        budget.step(len(value))
    if type(value) is list and all(type(each) is str or (type(each) is int and 0 <= each < 256) for each in value):
        return "".join(each if type(each) is str else chr(each) for each in value)
    raise ValueError(f"~s got {describe(value)}, expected a string")


def _integer(value: object, base: int, upper: bool, directive: str) -> str:
    if type(value) is not int:
        raise ValueError(f"~{directive} got {describe(value)}, expected an integer")
    if not 2 <= base <= 36:
        raise ValueError(f"~{directive} got the base {base}, expected 2 to 36")
    if base == 10:
        return str(value)
    size, digits = abs(value), ""
    while size or not digits:
        size, digit = divmod(size, base)
        digits = _DIGITS[digit] + digits
    return ("-" if value < 0 else "") + (digits.upper() if upper else digits)


def _float(value: object, directive: str, precision: int | None) -> str:
    if type(value) is not float:
        raise ValueError(f"~{directive} got {describe(value)}, expected a float")
    precision = 6 if precision is None else precision
    least = 1 if directive != "e" else 2
    if not least <= precision <= _MAX_PRECISION:
        raise ValueError(f"~{directive} got the precision {precision}, expected {least} to {_MAX_PRECISION}")
    if directive == "g":
        size = abs(value)
        place = next((at for at, limit in enumerate((0.1, 1.0, 10.0, 100.0, 1e3, 1e4), -2) if size < limit), 4)
        if place in (-2, 4) or not (precision <= 1 or place == -1 or precision - 1 > place):
            directive, precision = "e", max(precision, 2)
        else:
            precision = max(precision - 1 - place, 1)
    if directive != "e":
        return f"{value:.{precision}f}"
    digits, exponent = f"{value:.{precision - 1}e}".split("e")
    return f"{digits}e{int(exponent):+d}"


def _field(text: str, width: int | None, fill: str, cut: bool, budget: Budget) -> str:
    if width is None:
        return text
    budget.take_bytes(abs(width))
    if len(text) > abs(width):
        return text[: abs(width)] if cut else "*" * abs(width)
    return text.ljust(-width, fill) if width < 0 else text.rjust(width, fill)


def sprintf(template: str, values: list[object], budget: Budget) -> str:
    """Replace the directives of the format. Raises ValueError for an unknown directive, and for too few or too many
    values."""
    given = iter(values)
    parts: list[str] = []
    end = 0
    for match in _DIRECTIVE.finditer(template):
        budget.step()
        piece = _directive(match, given, budget)
        budget.take_bytes(len(piece))
        parts += template[end : match.start()], piece
        end = match.end()
    if next(given, budget) is not budget:
        raise ValueError(f"{len(values)} values are more than the format has directives for")
    return "".join([*parts, template[end:]])


def _next(given: Iterator[object], what: str) -> object:
    for value in given:
        return value
    raise ValueError(f"there is no value for {what}")


def _size(text: str | None, given: Iterator[object], what: str) -> int | None:
    if text is None:
        return None
    if text != "*":
        if len(text) > 9:
            raise ValueError(f"the {what} {text[:9]}... is too large")
        return int(text)
    size = _next(given, f"the {what} *")
    if type(size) is not int:
        raise ValueError(f"the {what} is {describe(size)}, expected an integer")
    return size


def _directive(match: re.Match[str], given: Iterator[object], budget: Budget) -> str:
    width = _size(match[1], given, "width")
    precision = _size(match[2], given, "precision")
    fill = match[3] or " "
    directive = match[5] or ""
    if directive == "~":
        return "~"
    if directive == "n":
        count = 1 if width is None else max(width, 0)
        budget.take_bytes(count)
        return "\n" * count
    if directive not in tuple("spwbBfegci"):
        raise ValueError(f"there is no directive {match[0]}")
    value = _next(given, match[0])
    if directive == "i":
        return ""
    if directive == "s":
        text = _plain(value, budget)
        if precision is not None:
            text = _field(text, -abs(precision), fill, True, budget)
        return _field(text, width, fill, True, budget)
    if directive == "c":
        if type(value) is not int or not 0 <= value < 0x110000 or 0xD800 <= value < 0xE000:
            raise ValueError(f"~c got {describe(value)}, expected the number of a character")
        count = precision if precision is not None else abs(width) if width is not None else 1
        budget.take_bytes(max(count, 0))
        return _field(chr(value) * count, width, fill, True, budget)
    if directive in ("b", "B"):
        text = _integer(value, 10 if precision is None else precision, directive == "B", directive)
    elif directive in ("f", "e", "g"):
        text = _float(value, directive, precision)
    else:
        text = _term(value, directive == "p", budget)
    return _field(text, width, fill, directive in ("p", "w"), budget)


@register("sprintf", TEXT, more=ANY, context=True)
def format_values(context: FunctionContext, template: str, *values: object) -> str:
    """Replace the directives of the format by the following values."""
    return sprintf(template, list(values), context.budget)


@register("sprintf_s", TEXT, LIST, context=True)
def format_list(context: FunctionContext, template: str, values: list[object]) -> str:
    """Replace the directives of the format by the values of a list."""
    return sprintf(template, values, context.budget)
