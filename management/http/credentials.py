"""Credentials: HTTP Basic with AppID and AppSecret, and patience with whoever guesses."""

import base64
import binascii
import ipaddress
import logging
from collections import OrderedDict
from typing import Final

from aiohttp import web

from broker.core.clock import Clock

from ..operations.apps import Apps
from ..operations.refusal import NO_CREDENTIALS, WRONG_CREDENTIALS, Refusal

logger = logging.getLogger(__name__)

FREE_FAILURES: Final = 10
"""Wrong credentials of one address before it has to wait; all of an IPv6 /64 are one."""
MOST_WAIT: Final = 60.0
FORGET_AFTER: Final = 600.0
_ADDRESSES: Final = 10_000


class Credentials:
    """Tells who may come in. One for the node."""

    def __init__(self, apps: Apps, clock: Clock) -> None:
        self._apps = apps
        self._clock = clock
        # address -> (failures, when the last was, when it may try again); the one that failed longest ago first
        self._failures: OrderedDict[str, tuple[int, float, float]] = OrderedDict()

    def check(self, request: web.Request) -> str:
        """The AppID. Raises Refusal 104 where there are no credentials, 103 where they are wrong or come too fast."""
        scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "basic" or not encoded.strip():
            raise Refusal(NO_CREDENTIALS, "HTTP Basic credentials are wanted: AppID and AppSecret")
        address = origin_of(request.remote or "")
        now = self._clock.now()
        wait = self._failures.get(address, (0, 0.0, 0.0))[2] - now
        if wait > 0:
            raise Refusal(WRONG_CREDENTIALS, f"too many wrong credentials from {address}; wait {wait:.0f} seconds")
        try:
            app_id, _, secret = base64.b64decode(encoded.strip(), validate=True).decode("utf-8").partition(":")
        except (binascii.Error, UnicodeDecodeError):
            app_id = secret = ""
        if not app_id and not secret:
            raise Refusal(NO_CREDENTIALS, "AppID and AppSecret are empty")
        if not self._apps.verify(app_id, secret):
            self._failed(address, app_id, now)
            raise Refusal(WRONG_CREDENTIALS, "wrong AppID or AppSecret")
        self._failures.pop(address, None)
        return app_id

    def _failed(self, address: str, app_id: str, now: float) -> None:
        count, last, _ = self._failures.pop(address, (0, 0.0, 0.0))
        count = 1 if now - last > FORGET_AFTER else count + 1
        over = count - FREE_FAILURES
        wait = min(MOST_WAIT, 2.0**over) if over >= 0 else 0.0
        self._failures[address] = (count, now, now + wait)
        if len(self._failures) > _ADDRESSES:
            self._failures.popitem(last=False)
        if count <= FREE_FAILURES or count % 100 == 0:
            logger.warning("api_credentials_wrong address=%s app_id=%s failures=%s", address, app_id, count)


def origin_of(host: str) -> str:
    """Who is meant by an address: whoever has one of an IPv6 /64 has all of it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return host if address.is_loopback else str(ipaddress.ip_network((address, 64), strict=False))
