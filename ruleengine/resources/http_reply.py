"""What a resource's HTTP server answered, and what becomes of the row; without the client that asks."""

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from ..delivery.buffer import DeliveryOutcome
from .resource import ResourceError

_SHOWN: Final = 200


class HttpReply(NamedTuple):
    """``body`` is cut to ``max_reply`` bytes."""

    status: int
    body: bytes


class BadRequest(ResourceError):
    """What was to be sent is no HTTP request."""


def outcome_of(reply: HttpReply) -> DeliveryOutcome:
    """2xx is success. What the server may take later is tried again: 408, 429, and any 5xx."""
    status = reply.status
    if 200 <= status < 300:
        return DeliveryOutcome()
    shown = reply.body[:_SHOWN].decode("utf-8", "replace").strip()
    reason = f"HTTP {status}" + (f": {shown}" if shown else "")
    if 300 <= status < 400:
        return DeliveryOutcome(f"HTTP {status}: redirects are not followed")
    # 502 to 504: a proxy reports that the server is away.
    return DeliveryOutcome(
        reason, retry=status in (408, 429) or status >= 500, unreachable=status in (408, 429, 502, 503, 504)
    )


def host_and_port(url: str) -> tuple[str, int]:
    """Where a URL of http or https leads."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
