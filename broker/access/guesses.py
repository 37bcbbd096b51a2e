"""Guesses: the number of recent wrong passwords from an address and for a username, and the delay of the next attempts.

An attempt is not checked during its delay, so that silence reveals nothing. Correct passwords wait equally long, and
are then accepted."""

import ipaddress
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from ..loop.clock import Clock
from ..session.client_info import CLIENT_ID_OWNER, ClientInfo, ip_address_of
from ..session.registry import SessionRegistry

logger = logging.getLogger(__name__)

_HALF_LIFE: Final = 60.0
"""Seconds after which half of the guesses are forgotten."""
_FIRST_DELAY: Final = 0.1
"""Delay in seconds of the first attempt above the limit; the delay doubles with each further attempt."""
_MAX_ENTRIES: Final = 10_000
"""Maximum number of addresses, names, and pairs of both that are remembered; the oldest is removed first."""
_MAX_KNOWN: Final = 100_000
_LOG_INTERVAL: Final = 10.0


class _Table:
    """Number of recent failures by key, halved every minute."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes, now: float) -> float:
        entry = self._entries.get(key)
        if entry is None:
            return 0.0
        failures, since = entry
        return failures * math.exp2((since - now) / _HALF_LIFE) if since < now else failures

    def add(self, key: bytes, amount: float, now: float) -> float:
        failures = self.get(key, now) + amount
        if failures <= 0:
            self._entries.pop(key, None)
            return 0.0
        self._entries[key] = (failures, now)
        self._entries.move_to_end(key)
        if len(self._entries) > _MAX_ENTRIES:
            self._entries.popitem(last=False)
        return failures


class Guesses:
    """A client that has sent the right password from its address before is delayed only for guesses of its own name
    from there. Guesses of its name from other addresses, and guesses of other names from its address, do not delay it.

    ``free``: number of wrong passwords per minute without a delay; 0: none is delayed. ``max_delay``: maximum delay of
    an attempt in seconds."""

    def __init__(self, clock: Clock, free: int, max_delay: float, count: Callable[[str], None]) -> None:
        self._clock = clock
        self.free = free
        self.max_delay = max_delay
        self._count = count
        self._addresses = _Table()
        self._names = _Table()
        self._pairs = _Table()
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._logged_at = -_LOG_INTERVAL
        self._not_logged = 0

    def known(self, address: str, name: bytes) -> bool:
        """Return whether this user has sent the right password from this address since the start."""
        return _pair(address, name) in self._known

    def delay(self, address: str, name: bytes, known: bool) -> float:
        """Return the seconds that an attempt has to wait before it is checked. ``known``: see above."""
        if not self.free:
            return 0.0
        now = self._clock.now()
        if known:
            failures = self._pairs.get(_pair(address, name), now)
        else:
            failures = max(self._addresses.get(address.encode(), now), self._names.get(name, now))
        if failures < self.free:
            return 0.0
        self._count("password_attempt_held")
        return min(self.max_delay, _FIRST_DELAY * math.exp2(min(failures - self.free, 30.0)))

    def wrong(self, address: str, name: bytes, known: bool, who: str) -> None:
        """Note a wrong password. ``who``: the username, for the log."""
        if not self.free:
            return
        now = self._clock.now()
        if known:
            worst = self._pairs.add(_pair(address, name), 1.0, now)
        else:
            worst = max(self._addresses.add(address.encode(), 1.0, now), self._names.add(name, 1.0, now))
        if worst >= self.free:
            self._log(address, who, now)

    def right(self, address: str, name: bytes) -> None:
        """Note a correct password. Only the first one of a user removes a wrong one from its address: otherwise a
        client that has one password could guess all others, between logins of its own."""
        pair = _pair(address, name)
        if pair in self._known:
            self._known.move_to_end(pair)
            return
        self._known[pair] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        self._addresses.add(address.encode(), -1.0, self._clock.now())

    def _log(self, address: str, who: str, now: float) -> None:
        self._not_logged += 1
        if now - self._logged_at < _LOG_INTERVAL:
            return
        logger.warning(
            "password_guesses_slowed address=%s username=%s count=%s setting=access.guesses",
            address,
            who,
            self._not_logged,
        )
        self._logged_at = now
        self._not_logged = 0


@lru_cache(4096)
def address_group(host: str) -> str:
    """Return the key of an address for guesses: for IPv6 the network of 64 bits, which one host can use completely."""
    if ":" not in host:
        return host
    address = ip_address_of(host)
    if address is None or (address.version == 6 and address.is_loopback):
        return host
    if address.version == 4:
        return str(address)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64)) + "/64"


def name_key(text: bytes) -> bytes:
    """Return a short key for a user, whatever the length of the name."""
    return blake2b(text, digest_size=16).digest()


def _pair(address: str, name: bytes) -> bytes:
    return blake2b(name + address.encode(), digest_size=16).digest()


def was_here(sessions: SessionRegistry, client: ClientInfo) -> bool:
    """Return whether a session shows that this client was accepted before, from this address: with this username, or
    without one because it had proved its identifier."""
    session = sessions.get(client.client_id)
    if session is None or not (client.username or session.owner == CLIENT_ID_OWNER):
        return False
    before = session.client
    return before.username == client.username and before.peer_host == client.peer_host
