"""Dates and times: Unix time in four units, RFC 3339, and custom formats."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from .function import INTEGER, REFUSED, TEXT, FunctionContext, Kind, one_of, register
from .values import describe

PER_SECOND: Final = {"second": 1, "millisecond": 10**3, "microsecond": 10**6, "nanosecond": 10**9}
_FRACTION: Final = {"second": 0, "millisecond": 3, "microsecond": 6, "nanosecond": 9}
_NANO: Final = 10**9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The first second of the year 1 and the last second of the year 9999.
_FIRST: Final = -62_135_596_800
_LAST: Final = 253_402_300_799

UNIT: Final = one_of(*PER_SECOND)
OFFSET: Final = Kind(
    "an offset such as 'Z', 'local', '+08:00' or seconds", lambda value: value if type(value) in (str, int) else REFUSED
)

_RFC3339 = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)(?::?(\d\d))?", re.ASCII)
_DIRECTIVE = re.compile(r"%(?:::z|:z|3N|6N|[YmdHMSNz])")
_WIDTH: Final = {"%Y": 4, "%3N": 3, "%6N": 6, "%N": 9, "%z": 5, "%:z": 6, "%::z": 9}


def _local_offset(second: int) -> int:
    try:
        return time.localtime(second).tm_gmtoff
    except (OverflowError, OSError) as error:
        raise ValueError(f"the time {second} has no local date") from error


def _offset(offset: str | int, second: int) -> int:
    """Return the seconds east of Greenwich; for the node's zone they depend on the moment."""
    if isinstance(offset, int):
        if abs(offset) >= 86_400:
            raise ValueError(f"the offset {offset} is a day or more")
        return offset
    if offset in ("Z", "z"):
        return 0
    if offset == "local":
        return _local_offset(second)
    match = _OFFSET.fullmatch(offset)
    if match is None or int(match[2]) > 23 or int(match[3]) > 59 or int(match[4] or 0) > 59:
        raise ValueError(f"{describe(offset)} is not an offset: expected 'Z', 'local', '+HHMM' or '+HH:MM[:SS]'")
    seconds = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4] or 0)
    return -seconds if match[1] == "-" else seconds


def _offset_text(offset: int, separator: str, seconds: bool) -> str:
    hours, rest = divmod(abs(offset), 3600)
    parts = [f"{hours:02d}", f"{rest // 60:02d}"] + ([f"{rest % 60:02d}"] if seconds else [])
    return ("-" if offset < 0 else "+") + separator.join(parts)


def _date(second: int) -> datetime:
    """Return the date of a Unix time in seconds with its offset."""
    if not _FIRST <= second <= _LAST:
        raise ValueError(f"{describe(second)} is not within the years 1 to 9999")
    return _EPOCH + timedelta(seconds=second)


def _second(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int:
    """Return the Unix time of a date in UTC. Raises ValueError if the date does not exist."""
    date = datetime(year, month, day, hour, minute, second, tzinfo=UTC) - _EPOCH
    return date.days * 86_400 + date.seconds


def _now(context: FunctionContext, unit: str) -> int:
    whole = int(context.now // 1)
    return (whole * _NANO + int((context.now - whole) * _NANO)) // (_NANO // PER_SECOND[unit])


def _rfc3339(stamp: int, unit: str) -> str:
    second, fraction = divmod(stamp, PER_SECOND[unit])
    _date(second)
    offset = _local_offset(second)
    date = _date(second + offset)
    digits = f".{fraction:0{_FRACTION[unit]}d}" if _FRACTION[unit] else ""
    return f"{date:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + digits + _offset_text(offset, ":", False)


@register("now_timestamp", UNIT, optional=1, context=True)
def now_timestamp(context: FunctionContext, unit: str = "second") -> int:
    """Return the current Unix time, in seconds or another unit."""
    return _now(context, unit)


@register("now_rfc3339", UNIT, optional=1, context=True)
def now_rfc3339(context: FunctionContext, unit: str = "second") -> str:
    """Return the current date and time in the node's time zone."""
    return _rfc3339(_now(context, unit), unit)


@register("unix_ts_to_rfc3339", INTEGER, UNIT, optional=1)
def to_rfc3339(stamp: int, unit: str = "second") -> str:
    """Return the date and time of a Unix time in the node's time zone; finer units add a fraction of 3, 6 or 9
    digits."""
    return _rfc3339(stamp, unit)


@register("rfc3339_to_unix_ts", TEXT, UNIT, optional=1)
def from_rfc3339(text: str, unit: str = "second") -> int:
    """Return the Unix time of a date and time; fractions of the unit are truncated."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{describe(text)} is not an RFC 3339 date: expected 2026-01-31T12:30:00Z or +08:00 for Z")
    year, month, day, hour, minute, second = (int(match[group]) for group in range(1, 7))
    seconds = _second(year, month, day, hour, minute, second) - _offset(match[8], 0)
    nanoseconds = int((match[7] or "")[:9].ljust(9, "0"))
    return (seconds * _NANO + nanoseconds) // (_NANO // PER_SECOND[unit])


@register("timezone_to_second", OFFSET, context=True)
def offset_seconds(context: FunctionContext, offset: str | int) -> int:
    """Return the seconds of an offset; 'local' is the current offset of the node."""
    return _offset(offset, int(context.now // 1))


@register("format_date", UNIT, OFFSET, TEXT, INTEGER, optional=1, context=True)
def format_date(context: FunctionContext, unit: str, offset: str | int, template: str, stamp: int | None = None) -> str:
    """Return a Unix time, or the current time, in a format of `%Y %m %d %H %M %S %3N %6N %N %z %:z %::z`; other
    characters remain unchanged."""
    if stamp is None:
        stamp = _now(context, unit)
    second, fraction = divmod(stamp, PER_SECOND[unit])
    _date(second)
    east = _offset(offset, second)
    date = _date(second + east)
    nano = f"{fraction * (_NANO // PER_SECOND[unit]):09d}"
    # Not with strftime, whose %Y below 1000 depends on the platform.
    fields = {
        "%Y": f"{date.year:04d}",
        "%m": f"{date.month:02d}",
        "%d": f"{date.day:02d}",
        "%H": f"{date.hour:02d}",
        "%M": f"{date.minute:02d}",
        "%S": f"{date.second:02d}",
        "%3N": nano[:3],
        "%6N": nano[:6],
        "%N": nano,
        "%z": _offset_text(east, "", False),
        "%:z": _offset_text(east, ":", False),
        "%::z": _offset_text(east, ":", True),
    }
    context.budget.take_bytes(len(template) * 3)
    context.budget.step(template.count("%"))
    return _DIRECTIVE.sub(lambda match: fields[match[0]], template)


@register("date_to_unix_ts", UNIT, OFFSET, TEXT, TEXT, optional=1, context=True)
def date_to_unix_ts(
    context: FunctionContext, unit: str, first: str | int, second: str, third: str | None = None
) -> int:
    """Return the Unix time of a date in a format (see `format_date`), read with or without an offset.

    Each field has a fixed width, characters between fields are skipped, and missing fields have their first value."""
    if third is None:
        if isinstance(first, int):
            raise ValueError("argument 2 is an integer, expected a format")
        offset: str | int = 0
        template, text = first, second
    else:
        offset, template, text = first, second, third
    context.budget.step(template.count("%"))
    found, east = _read(template, text)
    seconds = _second(
        *(found.get(key, start) for key, start in (("%Y", 1970), ("%m", 1), ("%d", 1), ("%H", 0), ("%M", 0), ("%S", 0)))
    )
    # Seconds as if in Greenwich: close enough to distinguish summer and winter time of the node's zone.
    seconds -= east + _offset(offset, seconds)
    return (seconds * _NANO + found.get("%N", 0)) // (_NANO // PER_SECOND[unit])


def _read(template: str, text: str) -> tuple[dict[str, int], int]:
    """Return the fields by their directive, with fractions in nanoseconds under `%N`, and the seconds east that the
    text contains."""
    fields: dict[str, int] = {}
    east = 0
    at = end = 0
    for match in _DIRECTIVE.finditer(template):
        at += match.start() - end
        end = match.end()
        directive = match[0]
        width = _WIDTH.get(directive, 2)
        if directive.endswith("z") and text[at : at + 1] in ("Z", "z"):
            width = 1
        piece = text[at : at + width]
        at += width
        if directive.endswith("z"):
            east = _offset(piece, 0) if piece != "local" else _refuse(directive, piece)
        elif len(piece) == width and piece.isascii() and piece.isdigit():
            if directive.endswith("N"):
                fields["%N"] = int(piece.ljust(9, "0"))
            else:
                fields[directive] = int(piece)
        else:
            _refuse(directive, piece)
    return fields, east


def _refuse(directive: str, piece: str) -> Any:
    raise ValueError(f"{describe(piece)} stands where {directive} is expected")
