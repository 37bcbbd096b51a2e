"""Times as EMQX writes them in parameters: ``500ms``, ``30s``, ``5m``, ``1h``."""

import re
from typing import Final

from .params import ParamError

_DURATION: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_duration(key: str, text: str, least: float = 0.001, most: float = 86_400.0) -> float:
    """Seconds. Raises ParamError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ParamError(key, "expected a time such as 500ms, 5s or 1m")
    seconds = int(match[1]) * _UNITS[match[2]]
    if not least <= seconds <= most:
        raise ParamError(key, f"expected {least:g} to {most:g} seconds")
    return seconds
