"""Two endpoints of CoAP's message layer with a network between them that loses, repeats and reorders datagrams. Time
is a number that ``run`` moves, so that a minute of repetitions is over at once."""

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

from taipan.broker.gateways.coap.exchange import CoapEndpoint, CoapRequest
from taipan.broker.gateways.coap.settings import Transmission
from taipan.broker.gateways.coap.shared import Exchanges


class Network:
    """``rates``: how many of a hundred datagrams are lost, repeated and late."""

    def __init__(self, seed: int = 0, loss: int = 0, repeat: int = 0, late: int = 0) -> None:
        self.random = random.Random(seed)
        self.rates = loss, repeat, late
        self.time = 1000.0
        self._due: list[tuple[float, int, Callable[[], None], Timer]] = []
        self._numbers = itertools.count()
        self.datagrams: list[tuple[str, bytes]] = []

    def after(self, seconds: float, callback: Callable[[], None]) -> "Timer":
        timer = Timer()
        heapq.heappush(self._due, (self.time + seconds, next(self._numbers), callback, timer))
        return timer

    def carry(self, name: str, data: bytes, to: Callable[[bytes], None]) -> None:
        self.datagrams.append((name, data))
        loss, repeat, late = self.rates
        for _ in range(1 + (self.random.randrange(100) < repeat)):
            if self.random.randrange(100) >= loss:
                delay = 0.01 + (self.random.uniform(0, 3) if self.random.randrange(100) < late else 0)
                self.after(delay, lambda: to(data))

    def run(self, seconds: float) -> None:
        end = self.time + seconds
        while self._due and self._due[0][0] <= end:
            self.time, _, callback, timer = heapq.heappop(self._due)
            if not timer.cancelled:
                callback()
        self.time = end


class Timer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Side:
    """A side has a CoapEndpoint, the requests to it, and its link (``broker.gateway.GatewayLink``)."""

    def __init__(self, network: Network, name: str, room: int = -1, **settings: Any) -> None:
        self.network = network
        self.name = name
        self.shared = Exchanges()
        self.peer = self.sender = name, 5683
        self.room = room
        self.other: Side | None = None
        self.dropped: list[str] = []
        self.served: list[CoapRequest] = []
        self.lost = 0
        self.answer: Callable[[CoapRequest], None] = lambda request: request.answer(0x45, request.payload)
        self.settings = Transmission(**settings)
        self.endpoint = CoapEndpoint(self, self.settings, self._serve, self._gone)  # type: ignore[arg-type]

    def _serve(self, request: CoapRequest) -> None:
        self.served.append(request)
        self.answer(request)

    def _gone(self) -> None:
        self.lost += 1

    # The link

    def write(self, data: bytes) -> None:
        if 0 <= self.room < len(data):
            self.dropped.append("amplification")
            return
        if self.room >= 0:
            self.room -= len(data)
        if self.other is not None:
            self.network.carry(self.name, data, self.other.receive)

    def receive(self, data: bytes) -> None:
        if self.room >= 0:
            self.room += len(data)
        self.endpoint.received(data)

    def now(self) -> float:
        return self.network.time

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self.network.after(seconds, callback)

    def alive(self) -> None:
        pass

    def proved(self) -> None:
        self.room = -1

    def drop(self, reason: str, detail: str, setting: str = "") -> None:
        self.dropped.append(reason)


def pair(network: Network, room: int = -1, **settings: Any) -> tuple[Side, Side]:
    """Return a device and the node; ``room``: of the node."""
    device, node = Side(network, "device", **settings), Side(network, "node", room, **settings)
    device.other, node.other = node, device
    return device, node
