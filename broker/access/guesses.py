"""Guesses: how many wrong passwords came lately from an address and for a user name, and how long the next ones wait.

An attempt that waits is not looked at meanwhile, so that silence tells nothing. Right ones wait as long, and get in.
"""

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
"""Seconds in which half of the guesses are forgotten."""
_FIRST_DELAY: Final = 0.1
"""Seconds that the first attempt too many waits; each further one twice as long."""
_MAX_ENTRIES: Final = 10_000
"""Addresses, names, and pairs of both that are remembered; the oldest goes first."""
_MAX_KNOWN: Final = 100_000
_LOG_INTERVAL: Final = 10.0


class _Table:
    """Recent failures by key, halved every minute."""

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
    """A client that was right before from its address is slowed only by what came from there for its name: neither
    guesses of others at its name nor those at other names from its address do.

    ``free``: so many wrong ones in a minute are not slowed; 0: none is. ``max_delay``: seconds that an attempt waits at
    most.
    """

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
        """Whether this user was right from this address since the start."""
        return _pair(address, name) in self._known

    def delay(self, address: str, name: bytes, known: bool) -> float:
        """Seconds that an attempt has to wait before it is looked at. ``known``: see above."""
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
        """A wrong password. ``who``: the user name, for the log."""
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
        """A right one. Only the first of a user takes a wrong one off its address: else a client that has one password
        could guess at all others, between logins of its own."""
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
    """An address as guesses are counted by it: of IPv6 the network of 64 bits, which one host has to itself."""
    if ":" not in host:
        return host
    address = ip_address_of(host)
    if address is None or (address.version == 6 and address.is_loopback):
        return host
    if address.version == 4:
        return str(address)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64)) + "/64"


def name_key(text: bytes) -> bytes:
    """A user's key: short, however long the name is."""
    return blake2b(text, digest_size=16).digest()


def _pair(address: str, name: bytes) -> bytes:
    return blake2b(name + address.encode(), digest_size=16).digest()


def was_here(sessions: SessionRegistry, client: ClientInfo) -> bool:
    """Whether a session shows that this client was let in before, from this address: under this username, or without
    one because its identifier was its own."""
    session = sessions.get(client.client_id)
    if session is None or not (client.username or session.owner == CLIENT_ID_OWNER):
        return False
    before = session.client
    return before.username == client.username and before.peer_host == client.peer_host
