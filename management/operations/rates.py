"""Rates as EMQX writes them: ``"100KB,10s"`` is 100 KiB in any ten seconds."""

import re
from typing import Final

from .refusal import wrong

_AMOUNT: Final = re.compile(r"([0-9]{1,15})\s*(kb|mb|gb|b)?", re.IGNORECASE)
_TIME: Final = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h|d)", re.IGNORECASE)
_BYTES: Final = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def read_rate(key: str, text: str, in_bytes: bool = False) -> tuple[float, float]:
    """Amount and seconds, both above 0; raises Refusal that names ``key``. Only an amount ``in_bytes`` has a unit."""
    example = "100KB,10s" if in_bytes else "100,1s"
    amount_text, comma, time_text = text.partition(",")
    amount = _AMOUNT.fullmatch(amount_text.strip())
    time = _TIME.fullmatch(time_text.strip())
    if not comma or amount is None or time is None or (amount[2] and not in_bytes):
        raise wrong(key, f'expected an amount and a time like "{example}", not "{text[:100]}"')
    rate = int(amount[1]) * _BYTES[(amount[2] or "").lower()], int(time[1]) * _SECONDS[time[2].lower()]
    if not all(rate):
        raise wrong(key, f'amount and time must be above 0, not "{text[:100]}"')
    return rate
