"""Times as text: most records use local time to the second; traces use RFC 3339."""

import time
from datetime import UTC, datetime
from typing import Final

from .refusal import wrong

LATEST: Final = 253_402_300_799
"""The last second of the year 9999."""


def local_text(when: float) -> str:
    """Return Unix seconds as ``YYYY-MM-DD HH:mm:ss``."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


def milliseconds(text: str) -> int:
    """Convert a result of ``local_text`` to Unix milliseconds."""
    return int(time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))) * 1000


def rfc3339(when: float) -> str:
    """Return Unix seconds as UTC."""
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def from_rfc3339(key: str, text: str) -> float:
    """Return Unix seconds; a time without an offset is UTC. Raises Refusal."""
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise wrong(key, "expected a time such as 2026-01-31T08:00:00Z") from None
    seconds = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
    if not 0 <= seconds <= LATEST:
        raise wrong(key, "expected a time from 1970 to 9999 UTC")
    return seconds
