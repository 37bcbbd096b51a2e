"""Values in the configuration of EMQX 4: numbers, flags, times and sizes as texts."""

import re
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZES: Final = {"": 1, "b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3}
_FLAGS: Final = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


class WrongValue(ValueError):
    """A value is invalid; the message states the expected form."""


def number_of(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise WrongValue("expected a whole number")
    return int(text)


def flag_of(text: str) -> bool:
    if text not in _FLAGS:
        raise WrongValue("expected on or off, true or false")
    return _FLAGS[text]


def seconds_of(text: str) -> float:
    """Return the seconds of ``15s``, ``1h30m``, or a number."""
    if re.fullmatch(r"\d{1,15}", text, re.ASCII):
        return float(text)
    if not re.fullmatch(r"(\d{1,15}(ms|s|m|h|d|w)){1,6}", text, re.ASCII):
        raise WrongValue("expected a time such as 15s")
    return sum(int(amount) * _UNITS[unit] for amount, unit in re.findall(r"(\d+)(ms|s|m|h|d|w)", text))


def size_of(text: str) -> int:
    found = re.fullmatch(r"(\d{1,18})\s*([kmg]?b?)", text.lower(), re.ASCII)
    if found is None or found[2] not in _SIZES:
        raise WrongValue("expected a size such as 1MB")
    return int(found[1]) * _SIZES[found[2]]
