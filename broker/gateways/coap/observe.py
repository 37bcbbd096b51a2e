"""The observations of one client (RFC 7641), and the states that have to be sent to it.

A client receives the last state of each topic. A newer state replaces one that waits, even one that has to be repeated,
so that a client on a slow network does not receive outdated states."""

from collections.abc import Callable
from typing import Final

from . import codec
from .blockwise import Resource
from .codec import Packet
from .exchange import CoapEndpoint, CoapRequest, Confirmable

MAX_OBSERVATIONS: Final = 100
"""Maximum number of observations of one client."""
_SEQUENCE: Final = 0xFFFFFF
_STATE_BYTES: Final = 200
"""Approximate memory of a waiting state without its payload and topic."""

_Key = tuple["Observation", str]


class Observation:
    """One observation. ``number`` identifies it within its client; ``target`` is what it observes."""

    __slots__ = ("content_format", "number", "resource", "sequence", "target", "token")

    def __init__(self, number: int, request: CoapRequest, target: str, content_format: int) -> None:
        self.number = number
        self.token = request.token
        self.resource: Resource = request.resource
        self.target = target
        self.content_format = content_format
        self.sequence = 0

    def next_sequence(self) -> bytes:
        """Return the value of the option Observe for the next answer or notification."""
        self.sequence = self.sequence + 1 & _SEQUENCE
        return codec.uint_bytes(self.sequence)


class Observations:
    """The observations of a client. ``dropped`` is called when a state is not sent because ``max_bytes`` wait;
    ``ended`` when the client has rejected a notification, or has received an error in place of one."""

    __slots__ = ("_bytes", "_dropped", "_ended", "_endpoint", "_last", "_max_bytes", "_of", "_waiting")

    def __init__(
        self, endpoint: Callable[[], CoapEndpoint], max_bytes: int, dropped: Callable[[], None],
        ended: Callable[[Observation], None],
    ) -> None:  # fmt: skip
        self._endpoint = endpoint
        self._max_bytes = max_bytes
        self._dropped = dropped
        self._ended = ended
        self._of: dict[int, Observation] = {}
        self._last = 0
        # What is observed, and the topic -> the state, the oldest first.
        self._waiting: dict[_Key, tuple[bytes, int]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(list(self._of.values()))

    def add(self, request: CoapRequest, target: str, content_format: int) -> Observation | None:
        """Add an observation, or return the existing one that the request names; None: the client has too many."""
        found = self.find(request.token)
        if found is not None and found.target == target:
            found.resource = request.resource
            return found
        if len(self._of) >= MAX_OBSERVATIONS:
            return None
        self._last += 1
        found = self._of[self._last] = Observation(self._last, request, target, content_format)
        return found

    def find(self, token: bytes) -> Observation | None:
        """Return the observation with this token."""
        return next((each for each in self._of.values() if each.token == token), None)

    def get(self, number: int) -> Observation | None:
        return self._of.get(number)

    def of(self, target: str) -> list[Observation]:
        """Return all observations of a target."""
        return [each for each in self._of.values() if each.target == target]

    def remove(self, observation: Observation) -> None:
        """End an observation; its waiting states are not sent."""
        self._of.pop(observation.number, None)
        for key in [each for each in self._waiting if each[0] is observation]:
            self._take(key)

    def notify(self, observation: Observation, topic: str, payload: bytes, content_format: int) -> None:
        """Send a state, or let it wait in place of an older one."""
        key = observation, topic
        size = _size(key, payload)
        old = self._waiting.get(key)
        if old is not None:
            self._bytes -= _size(key, old[0])
        while self._bytes + size > self._max_bytes and (oldest := self._oldest(key)) is not None:
            self._take(oldest)
            self._dropped()
        self._waiting[key] = payload, content_format
        self._bytes += size
        self._endpoint().advance()

    def _oldest(self, but: _Key) -> _Key | None:
        return next((each for each in self._waiting if each != but), None)

    def _take(self, key: _Key) -> tuple[bytes, int]:
        state = self._waiting.pop(key)
        self._bytes -= _size(key, state[0])
        return state

    def more(self) -> Confirmable | None:
        """Return the next notification: ``CoapEndpoint`` asks for it when it may be sent."""
        if not self._waiting:
            return None
        key = next(iter(self._waiting))
        observation = key[0]
        state = self._take(key)

        def build(mid: int) -> bytes:
            nonlocal state
            if key in self._waiting:
                state = self._take(key)
            return self._notification(observation, mid, *state)

        def done(packet: Packet | None) -> None:
            if packet is not None and packet.type == codec.RST and self._of.get(observation.number) is observation:
                self._ended(observation)

        return Confirmable(build, done, newer=lambda: key in self._waiting)

    def _notification(self, observation: Observation, mid: int, payload: bytes, content_format: int) -> bytes:
        endpoint = self._endpoint()
        code, part = codec.UNAVAILABLE, b""
        options: codec.Options = []
        if self._of.get(observation.number) is observation:
            options = [
                (codec.OBSERVE, observation.next_sequence()),
                (codec.CONTENT_FORMAT, codec.uint_bytes(content_format)),
            ]
            code, options, part = endpoint.in_blocks(observation.resource, options, payload)
            if codec.is_error(code):  # RFC 7641, section 4.2: the observation ends with it
                self._ended(observation)
        return codec.encode(codec.CON, code, mid, observation.token, options, part)


def _size(key: _Key, payload: bytes) -> int:
    return len(payload) + len(key[1]) + _STATE_BYTES
