"""The answer of a resource's HTTP server, and the resulting outcome of the row; without the client."""

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from ..delivery.buffer import DeliveryOutcome
from .resource import ResourceError

_SHOWN: Final = 200


class HttpReply(NamedTuple):
    """``body`` is truncated to ``max_reply`` bytes."""

    status: int
    body: bytes


class BadRequest(ResourceError):
    """The data to send is not a valid HTTP request."""


def outcome_of(reply: HttpReply) -> DeliveryOutcome:
    """2xx is success. Answers of a server that may accept the row later cause a retry: 408, 429, and any 5xx."""
    status = reply.status
    if 200 <= status < 300:
        return DeliveryOutcome()
    shown = reply.body[:_SHOWN].decode("utf-8", "replace").strip()
    reason = f"HTTP {status}" + (f": {shown}" if shown else "")
    if 300 <= status < 400:
        return DeliveryOutcome(f"HTTP {status}: redirects are not followed")
    # 502 to 504: a proxy reports that the server is unreachable.
    return DeliveryOutcome(
        reason, retry=status in (408, 429) or status >= 500, unreachable=status in (408, 429, 502, 503, 504)
    )


def host_and_port(url: str) -> tuple[str, int]:
    """Return host and port of an http or https URL."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
