"""Times as EMQX writes them in parameters: ``500ms``, ``30s``, ``5m``, ``1h``."""

import re
from collections.abc import Mapping
from typing import Any, Final

from .params import Param, ParamError, Text, number

_DURATION: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_duration(key: str, text: str, least: float = 0.001, most: float = 86_400.0) -> float:
    """Seconds. Raises ParamError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ParamError(key, "expected a time such as 500ms, 5s or 1m")
    seconds = int(match[1]) * _UNITS[match[2]]
    if not least <= seconds <= most:
        raise ParamError(key, f"expected {number(least)} to {number(most)} seconds")
    return seconds


_MAX_RETRY_FOR: Final = 31_536_000.0


def retry_for_param(order: int) -> Param:
    """How long a row of an action may wait for a side that is away."""
    return Param(
        "retry_for",
        order,
        ["string", "number"],
        Text("Retry For", "重试时长"),
        Text(
            "How long a row waits for a server that is away, in seconds or such as 30s, 5m; then it fails and the "
            "fallbacks run. 0: it fails at once. Without: as long as it takes",
            "服务器不可用时数据等待的时长 (秒,或 30s、5m);超时后失败并执行备选动作。0:立即失败;不填:一直等待",
        ),
    )


def read_retry_for(params: Mapping[str, Any]) -> float | None:
    """Seconds of ``retry_for``; None: as long as it takes. Raises ParamError."""
    given = params.get("retry_for")
    if given is None or given in ("", "infinity"):
        return None
    if isinstance(given, str):
        seconds = 0.0 if given.strip() == "0" else read_duration("retry_for", given, 0.0, _MAX_RETRY_FOR)
    else:
        seconds = float(given)
    if not 0 <= seconds <= _MAX_RETRY_FOR:
        raise ParamError("retry_for", f"expected 0 to {number(_MAX_RETRY_FOR)} seconds")
    return seconds
