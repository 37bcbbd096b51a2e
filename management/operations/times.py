"""Times as the records have them: local, to the second."""

import time


def text(when: float) -> str:
    """Unix seconds as ``YYYY-MM-DD HH:mm:ss``."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


def uptime(seconds: float) -> str:
    """``1 days, 0 hours, 5 minutes, 3 seconds`` from the largest unit that is not zero; at least ``0 seconds``."""
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        amount, left = divmod(left, length)
        if amount or parts:
            parts.append(f"{amount} {unit}")
    return ", ".join([*parts, f"{left} seconds"])
