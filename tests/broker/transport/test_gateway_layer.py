"""GatewayLayer: which bytes a conversation sees and how often, and what the Connection is told of them."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from taipan.broker.gateway import Gateway, GatewayLink
from taipan.broker.listener_kinds import ListenerKind
from taipan.broker.mqtt.encoder import Outgoing
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Connect, Disconnect
from taipan.broker.transport import gateway_layer
from taipan.broker.transport.gateway_layer import GatewayLayer
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

LITTLE = 16_384
MOST = 4_000_000


class Conversation:
    """Requests end with ``\\n``. One of ``PUB`` and a topic is a PUBLISH, ``CONNECT`` is one; others are kept."""

    def __init__(self, link: GatewayLink, settings: object) -> None:
        self.link = link
        self.calls: list[int] = []
        self.kept: list[bytes] = []
        self.told: list[Outgoing] = []
        self.fault: Callable[[Outgoing], None] = lambda packet: None

    def received(self, data: bytes) -> int:
        self.calls.append(len(data))
        *lines, rest = data.split(b"\n")
        for line in lines:
            name, _, topic = line.partition(b" ")
            if name == b"CONNECT":
                self.link.send(Connect(5, "c"))
            elif name == b"PUB":
                self.link.publish(topic.decode(), b"")
            else:
                self.kept.append(line)
        return len(data) - len(rest)

    def packet(self, packet: Outgoing) -> None:
        self.told.append(packet)
        self.fault(packet)

    def closed(self) -> None:
        pass


class Above:
    """Stands for the Connection: what it is told of the bytes of its client."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, int]] = []
        self.channel = SimpleNamespace()
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes, raw: int = -1, begun: int = 0) -> None:
        self.told.append((len(data), raw, begun))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Made:
    def __init__(self) -> None:
        self.above: Any = Above()
        self.faults: list[Exception] = []
        self.gateway_settings = self.gateway_shared = None
        self.gateway: Gateway | None = Gateway(
            name="x", listener=ListenerKind(name="x", protocol="x", scheme="x"), channel=self._channel,
            proto_name="X", proto_ver=1,
        )  # fmt: skip
        self.layer = GatewayLayer(self.above, MOST, self)
        self.layer.connection_made(Below())

    def gateway_failed(self, error: Exception) -> None:
        self.faults.append(error)

    def refuse(self, reason: str, setting: str, peer: tuple[str, int], detail: str = "") -> None:
        raise AssertionError(reason)

    def _channel(self, link: GatewayLink, settings: object) -> Conversation:
        self.conversation = Conversation(link, settings)
        return self.conversation


class Below(asyncio.Transport):
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return None


async def test_the_beginning_of_a_large_request_is_not_seen_again_with_each_byte() -> None:
    """Measured in bytes that the conversation is handed: in all a few times what came, however small the pieces."""
    made = Made()
    layer, calls = made.layer, made.conversation.calls
    layer.data_received(b"x" * 1_000_000)
    for _ in range(5000):  # the loop does not run meanwhile
        layer.data_received(b"x")
    assert calls == [1_000_000] and layer.held_bytes == 1_005_000
    layer.data_received(b"x" * 1_000_000)
    assert calls == [1_000_000, 2_005_000]  # twice as much
    layer.data_received(b"\n")
    await until(lambda: made.conversation.kept != [])  # the end of a request waits for nothing more
    assert calls[2:] == [2_005_001] and layer.held_bytes == 0
    assert made.conversation.kept == [b"x" * 2_005_000]
    assert sum(raw for _, raw, _ in made.above.told) == 2_005_001


async def test_little_is_seen_at_once() -> None:
    made = Made()
    for size in range(1, 200):
        made.layer.data_received(b"x")
        assert made.conversation.calls[-1] == size
    made.layer.data_received(b"\n")
    assert made.conversation.kept == [b"x" * 199]


@pytest.mark.parametrize("end", ["eof_received", "connection_lost"])
async def test_what_waits_is_seen_before_the_end(end: str) -> None:
    made = Made()
    made.layer.data_received(b"x" * 100_000)
    made.layer.data_received(b"\n")
    assert made.conversation.kept == []
    getattr(made.layer, end)(*([None] if end == "connection_lost" else []))
    assert made.conversation.kept == [b"x" * 100_000] and made.above.lost == (end == "connection_lost")


async def test_more_than_the_limit_is_judged_when_it_has_been_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []
    monkeypatch.setattr(gateway_layer, "fail", lambda channel, error: refused.append(str(error)))
    made = Made()
    made.layer.data_received(b"x" * (MOST - 10))
    made.layer.data_received(b"x" * 10 + b"\n" + b"y")
    assert (len(made.conversation.kept), made.layer.held_bytes, refused) == (1, 1, [])
    made.layer.data_received(b"y" * MOST)
    assert refused == [f"more than {MOST} bytes in a request"]


async def test_all_bytes_of_the_client_are_told() -> None:
    """How many came, and how many of them no packet has come of yet: whoever keeps them."""
    made = Made()
    layer, told = made.layer, made.above.told
    layer.data_received(b"CONNECT\nPUB")
    layer.data_received(b" top")
    layer.data_received(b"ic\nkept\nPUB")
    layer.data_received(b" x\n")
    layer.data_received(b"kept as well\n")
    assert [each[1:] for each in told] == [(11, 3), (4, 7), (11, 3), (3, 0), (13, 13)]
    assert [size > 0 for size, *_ in told] == [True, False, True, True, False]


async def test_after_a_fault_only_the_farewell_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made()
    conversation = made.conversation
    made.layer.data_received(b"CONNECT\n")

    def fault(packet: Outgoing) -> None:
        raise RuntimeError("a fault")

    conversation.fault = fault
    publish = gateway_layer.encode(Message("t", b""), 5)
    made.above.channel = None
    monkeypatch.setattr(gateway_layer, "internal_error", lambda channel: None)
    made.layer.write(publish * 3)
    made.layer.write(publish)
    assert len(conversation.told) == 1 and len(made.faults) == 1
    made.layer.write(gateway_layer.encode(Disconnect(0x80), 5))
    assert isinstance(conversation.told[-1], Disconnect)
