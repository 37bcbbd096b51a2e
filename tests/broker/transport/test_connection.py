"""Connection: what is read, what waits and why, what is written, and when it ends. No sockets, no sleeping."""

import asyncio
import logging
import sys
from ipaddress import ip_address
from typing import Any

import pytest

from taipan.broker.access.auth_result import AuthOutcome
from taipan.broker.channel import closing
from taipan.broker.channel import dispatcher as channel_module
from taipan.broker.channel.channel import CONNECTED
from taipan.broker.loop.budget import HIGH_WATER
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Subscribe,
    TopicFilter,
    Will,
)
from taipan.broker.transport import connection as module
from taipan.broker.transport import connection_reader as reader_module
from taipan.broker.transport.connection import LINGER, WRITE_HIGH, WRITE_LOW
from taipan.broker.transport.connection_pauses import SLOW
from taipan.broker.transport.layer import Layer
from taipan.broker.transport.proxy_protocol import ProxiedTransport, ProxyHeader
from tests.support.fake_node import FakeClient, FakeNode, FakeTransport, blocked_reader
from tests.support.wire import Publish, encode

PING = b"\xc0\x00"


# --- beginning ------------------------------------------------------------------------------------------------------


def test_it_is_known_from_its_first_moment() -> None:
    node = FakeNode()
    unconnected = node.open()
    assert node.listener.open == 1
    assert node.server.connections.keys() == {unconnected.connection}
    client = unconnected.channel.client
    assert (client.peer_host, client.peer_port, client.sock_port, client.loopback) == ("192.0.2.1", 50_000, 1883, True)
    assert (client.node, client.listener, client.zone_name) == ("taipan@127.0.0.1", "default", "external")
    assert (unconnected.transport.high, unconnected.transport.low) == (WRITE_HIGH, WRITE_LOW)


def test_a_transport_that_knows_no_addresses() -> None:
    client = FakeNode().open(peername=None, sockname=None).channel.client
    assert (client.peer_host, client.peer_port, client.sock_port) == ("", 0, 0)


def test_clients_with_one_address_share_it_and_the_addresses_of_others_are_freed() -> None:
    def host_of(number: int) -> str:
        peer = (ip_address(0x20010DB8 << 96 | number).compressed, 50_000)
        return node.open(peername=peer).channel.client.peer_host

    node = FakeNode()
    interned = getattr(sys, "getunicodeinternedsize", lambda: 0)  # from Python 3.12 on
    assert host_of(1) is host_of(1)
    before = interned()
    for number in range(1000):
        host_of(number)
    after = interned()
    assert after - before < 100


def test_the_name_in_a_client_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "peer_identity", lambda ssl_object: ("the cn", "CN=the cn"))
    for field, name in (("cn", "the cn"), ("dn", "CN=the cn"), ("", None)):
        node = FakeNode()
        client = node.connect("c", ssl_object=object(), tls_username=field).channel.client
        assert (client.cn, client.dn, client.username) == ("the cn", "CN=the cn", name)


@pytest.mark.parametrize("sent", [b"", b"\x10", b"\x10\x20\x00\x04MQ"])
def test_no_complete_connect_in_time(sent: bytes) -> None:
    node = FakeNode({"idle_timeout": 10})
    unconnected = node.open()
    node.pass_time(9)
    unconnected.transport.feed(sent)
    node.pass_time(0.9)
    assert not unconnected.closed
    node.pass_time(0.1)
    node.pass_time(0.1)  # what lies in the socket is read before
    assert unconnected.closed
    assert unconnected.transport.take() == b""
    assert node.metrics.refusals.snapshot() == {"idle_timeout": 1}
    unconnected.vanish()
    assert node.listener.reasons == ["idle_timeout"]


def test_the_idle_timeout_is_over_with_the_connack() -> None:
    node = FakeNode({"idle_timeout": 10})
    client = node.connect(keep_alive=0)
    node.pass_time(1_000_000)
    assert not client.closed
    assert len(node.timers) == 0


def test_layers_learn_of_the_connack() -> None:
    class Grows(Layer):
        def __init__(self, below: FakeTransport) -> None:
            super().__init__()
            self.below = below
            self.grown: list[int] = []

        def raise_packet_limit(self, max_packet_size: int) -> None:
            self.grown.append(max_packet_size)

        def can_write_eof(self) -> bool:
            return False

    node = FakeNode({"max_packet_size": 5000})
    client = node.open()
    layer = client.connection._transport = Grows(client.transport)
    client.connect()
    assert layer.grown == [5000]


def test_a_client_behind_a_proxy_is_let_read_our_last_packet() -> None:
    """Closing at once, with input unread, would reset the connection and take the DISCONNECT away."""
    node = FakeNode()
    client = node.open()
    client.connection._transport = ProxiedTransport(client.transport, ProxyHeader(0, 2))
    client.connect()
    client.feed(Connect(5, "again"))
    assert isinstance(client.received()[0], Disconnect)
    assert client.transport.wrote_eof and not client.transport.closing


def test_tls_keeps_no_connection_half_open_for_what_is_parked(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio and uvloop warn of a protocol that asks TLS for it."""
    node = FakeNode()
    client = node.connect()
    node.broker.budget.bytes = HIGH_WATER + 1
    client.feed(Publish("t"), Pingreq())
    assert client.connection._queued_packets is not None
    assert client.connection.eof_received()
    client.transport.half_closes = False
    assert not client.connection.eof_received()


def test_who_sends_no_byte_is_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A balancer probes whether the node is there; its listener counts it."""
    node = FakeNode()
    with caplog.at_level(logging.INFO):
        for client in (node.open(), node.open()):
            client.transport.feed_eof()
            node.run()
    assert (node.listener.probes, node.listener.reasons) == (2, ["tcp_closed", "tcp_closed"])
    assert "client_refused" not in caplog.text
    assert node.metrics.refusals.snapshot() == {"tcp_closed": 2}
    client = node.open()
    with caplog.at_level(logging.INFO):
        client.transport.feed(b"\x10")
        client.transport.feed_eof()
        node.run()
    assert node.listener.probes == 2 and "client_refused" in caplog.text


# --- reading --------------------------------------------------------------------------------------------------------


def test_packets_in_pieces_and_in_one_piece() -> None:
    node = FakeNode()
    client = node.connect()
    for byte in encode(Publish("t", b"x", 1, packet_id=1), 5):
        client.transport.feed(bytes((byte,)))
    assert client.received() == [Ack(c.PUBACK, 1, rc.NO_MATCHING_SUBSCRIBERS)]
    assert client.ask(*[Pingreq()] * 3) == [Pingresp()] * 3
    assert client.transport.writes == 3  # CONNACK, PUBACK, and the three PINGRESP in one


def test_its_counters() -> None:
    node = FakeNode()
    client = node.connect()
    client.subscribe("t", qos=2)
    for qos in range(3):
        node.publish("t", b"x", qos)
    client.received()
    traffic = client.connection.traffic()
    assert (traffic.received_packets, traffic.received_reads) == (2, 2)
    assert (traffic.received0, traffic.received1, traffic.received2) == (0, 0, 0)
    assert (traffic.sent0, traffic.sent1, traffic.sent2, traffic.sent_packets) == (1, 1, 1, 5)
    assert traffic.sent_bytes == node.metrics.bytes_sent
    assert traffic.received_bytes == node.metrics.bytes_received
    assert traffic.sent_writes == client.transport.writes
    metrics = node.metrics
    assert (metrics.messages_qos0_sent, metrics.messages_qos1_sent, metrics.messages_qos2_sent) == (1, 1, 1)
    assert metrics.messages_delivered == 3


def test_after_the_end_nothing_is_read() -> None:
    """[MQTT-3.14.4-2] [MQTT-3.1.4-6]: what comes behind DISCONNECT or a refused CONNECT is not looked at."""
    node = FakeNode()
    node.connect("r").subscribe("t")
    client = node.connect("c")
    client.send(Disconnect(), Publish("t", b"late"))
    client.transport.feed(encode(Publish("t", b"later"), 5))
    assert node.metrics.messages_publish == 0
    unconnected = FakeNode({"allow_anonymous": False}).open()
    unconnected.feed(Connect(5, "c"), Publish("t", b"x", 1, packet_id=1))
    (connack,) = unconnected.received()
    assert isinstance(connack, Connack) and connack.reason_code == rc.NOT_AUTHORIZED
    assert unconnected.node.metrics.messages_publish == 0


# --- packets that wait ----------------------------------------------------------------------------------------------


@pytest.mark.interpreted
def test_a_turn_s_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output goes out and others are heard before a publisher goes on; its packets keep their order."""
    monkeypatch.setattr(channel_module, "DELIVERIES_PER_ITERATION", 4)
    monkeypatch.setattr(reader_module, "DELIVERIES_PER_ITERATION", 4)
    node = FakeNode()
    reader = node.connect("r")
    reader.subscribe("t")
    writer = node.connect("w")
    other = node.connect("o")
    writer.feed(*[Publish("t", b"%d" % number) for number in range(7)])
    other.feed(Pingreq())
    assert other.arrived() == []
    assert writer.transport.reading and other.transport.reading  # it is for this iteration only
    writer.transport.feed(PING)
    assert not writer.transport.reading and other.transport.reading
    node.loop.turn()
    assert [each.payload for each in reader.arrived()] == [b"0", b"1", b"2"]
    assert node.loop.waiting(node.flusher.run) == 1
    node.run()
    assert reader.payloads() == [b"3", b"4", b"5", b"6"]
    assert writer.received() == [Pingresp()]
    assert other.received() == [Pingresp()]
    assert writer.transport.reading and other.transport.reading


def test_too_many_bytes_of_output_wait() -> None:
    node = FakeNode()
    writer = node.connect("w")
    node.broker.budget.bytes = HIGH_WATER + 1
    writer.feed(Publish("t", b"x"), Pingreq())
    assert writer.channel.state == 2 and writer.arrived() == []
    for _ in range(3):
        writer.transport.feed(PING)
        assert not writer.transport.reading
    assert len(writer.transport.incoming) == 2
    writer.connection.data_received(PING)  # a layer may have some left
    node.run()
    assert writer.arrived() == [Pingresp()] * 5 and writer.transport.reading


def test_who_publishes_nothing_does_not_wait_for_the_output_of_others() -> None:
    node = FakeNode()
    client = node.connect("c")
    node.broker.budget.bytes = HIGH_WATER + 1
    client.feed(Pingreq())
    assert client.connection._queued_packets is None and client.transport.reading
    node.run()
    assert client.received() == [Pingresp()]


def test_output_that_is_still_too_much_after_a_turn_keeps_holding() -> None:
    node = FakeNode()
    writer = node.connect("w")
    turn = node.broker.budget
    turn.bytes = HIGH_WATER + 1
    writer.feed(Publish("t", b"x"), Pingreq())
    writer.connection.resume()
    assert writer.connection._queued_packets is not None and writer.transport.reading
    turn.bytes = 0
    writer.connection.resume()
    assert writer.connection._queued_packets is None and writer.transport.reading
    assert writer.received() == [Pingresp()]  # the runs of the flusher find nothing to release any more


def waiting_connect(
    node: FakeNode, *more: Any, connect: Connect | None = None
) -> tuple[FakeClient, "asyncio.Future[Any]"]:
    """A CONNECT whose password takes its time, and packets behind it."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.context.access.authentication.authenticate = lambda client, password, certified: future  # type: ignore[method-assign, assignment, return-value]
    client = node.open()
    client.feed(Connect(5, "c") if connect is None else connect, *more)
    return client, future


async def settle(node: FakeNode) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    node.run()


OUTCOME = AuthOutcome()


@pytest.mark.asyncio
@pytest.mark.interpreted
async def test_packets_behind_a_connect_wait_for_its_answer_in_order() -> None:
    """[MQTT-3.2.0-1] [MQTT-3.1.4-6]"""
    node = FakeNode()
    client, future = waiting_connect(node, Pingreq(), Subscribe(1, [TopicFilter("t")]))
    client.connection.data_received(encode(Publish("t", b"x"), 5))
    await settle(node)
    assert client.received() == []
    assert client.transport.reading  # else nobody would notice that it leaves
    future.set_result(OUTCOME)
    await settle(node)
    connack, pong, suback, message = client.received()
    assert isinstance(connack, Connack) and isinstance(pong, Pingresp)
    assert suback.packet_id == 1 and message.payload == b"x"  # type: ignore[union-attr]
    assert client.transport.reading


@pytest.mark.asyncio
@pytest.mark.interpreted
async def test_nothing_behind_the_waiting_connect() -> None:
    node = FakeNode()
    client, future = waiting_connect(node)
    future.set_result(OUTCOME)
    await settle(node)
    assert len(client.received()) == 1
    assert client.transport.reading


@pytest.mark.asyncio
@pytest.mark.interpreted
async def test_the_client_goes_while_its_connect_waits() -> None:
    node = FakeNode()
    client, future = waiting_connect(node)
    client.vanish()
    assert node.listener.reasons == ["tcp_closed"]
    future.set_result(OUTCOME)
    await settle(node)
    assert len(node.broker.sessions) == 0
    assert node.context.channels == {}


@pytest.mark.asyncio
@pytest.mark.interpreted
async def test_a_half_closed_client_with_nothing_behind_its_waiting_connect_has_left() -> None:
    node = FakeNode()
    client, future = waiting_connect(node)
    assert not client.connection.eof_received()
    future.cancel()


@pytest.mark.asyncio
@pytest.mark.interpreted
async def test_what_a_client_sent_before_it_went_is_taken_when_its_connect_is() -> None:
    node = FakeNode()
    client, future = waiting_connect(node, Publish("t", b"x"))
    client.vanish()
    assert node.metrics.messages_publish == 0
    future.set_result(OUTCOME)
    await settle(node)
    assert node.metrics.messages_publish == 1
    assert node.listener.reasons == ["tcp_closed"]
    assert len(node.broker.sessions) == 0
    assert node.context.channels == {}


@pytest.mark.asyncio
@pytest.mark.interpreted
async def test_a_client_that_sends_much_before_its_connack_is_read_no_further() -> None:
    node = FakeNode()
    client, future = waiting_connect(node)
    client.transport.feed(encode(Publish("t", b"x" * 40_000), 5))
    node.run()
    assert client.transport.reading
    client.transport.feed(encode(Publish("t", b"x" * 40_000), 5))
    node.run()
    assert not client.transport.reading
    future.set_result(OUTCOME)
    await settle(node)
    assert client.transport.reading and node.metrics.messages_publish == 2


@pytest.mark.asyncio
@pytest.mark.interpreted
async def test_what_waits_to_be_let_in_is_bounded_for_the_node() -> None:
    """The largest ones are closed, not the last one."""
    node = FakeNode()
    before_login = node.context.before_login
    before_login.limit = 100_000
    waiting = [waiting_connect(node, Publish("t", b"x" * size)) for size in (25_000, 30_000, 31_000)]
    assert 86_000 < before_login.bytes < 100_000 and len(before_login) == 3
    honest, future = waiting_connect(node, Publish("t", b"x" * 10_000))
    await settle(node)
    assert before_login.bytes < 100_000
    large, late = waiting_connect(node, Publish("t", b"x" * 40_000))
    assert large.received()[0].reason_code == 0x89 and large.closed  # type: ignore[union-attr]
    assert waiting[2][0].closed and not waiting[1][0].closed and not honest.closed
    assert before_login.bytes < 75_000 and before_login.evicted == 2
    assert node.metrics.refusals.snapshot()["memory"] == 2
    for _, each in waiting[:2]:
        each.set_result(OUTCOME)
    future.set_result(OUTCOME)
    late.cancel()
    await settle(node)
    assert isinstance(honest.received()[0], Connack)
    assert before_login.bytes == len(before_login) == 0


@pytest.mark.asyncio
@pytest.mark.interpreted
async def test_what_a_connect_is_decoded_to_counts_before_a_login() -> None:
    """A User Property of 5 bytes takes 160 in memory; one character beyond the first plane makes a name take four bytes
    for each of its characters."""
    node = FakeNode({"max_connect_size": 262_144})
    before_login = node.context.before_login
    many = Connect(5, "c", properties={c.USER_PROPERTY: [("", "")] * 10_000})
    long = Connect(5, "\U0001f600" + 60_000 * "x", username="\U0001f600" + 60_000 * "y")
    for connect, least in ((many, 1_500_000), (long, 580_000)):
        client, future = waiting_connect(node, connect=connect)
        assert before_login.bytes > least
        future.cancel()
        client.vanish()
        await settle(node)
        assert before_login.bytes == len(before_login) == 0


def test_a_connect_that_a_busy_loop_has_not_read_yet_is_not_late() -> None:
    node = FakeNode({"idle_timeout": 10})
    client = node.open()
    node.pass_time(60)  # the time is up, and what lies in the socket is read after that
    client.feed(Connect(5, "c"))
    assert isinstance(client.received()[0], Connack)
    node.pass_time(60)
    assert not client.closed


@pytest.mark.asyncio
@pytest.mark.interpreted
async def test_the_idle_timeout_is_over_with_the_connect() -> None:
    """Whoever has sent a complete CONNECT waits for us, and is not told that none came."""
    node = FakeNode({"idle_timeout": 10})
    client, future = waiting_connect(node, Pingreq())
    await settle(node)
    for _ in range(5):
        node.pass_time(10)
    assert not client.closed
    future.set_result(OUTCOME)
    await settle(node)
    assert [type(each) for each in client.received()] == [Connack, Pingresp]


@pytest.mark.asyncio
@pytest.mark.interpreted
async def test_the_client_ends_its_side_while_its_connect_waits() -> None:
    node = FakeNode()
    client, future = waiting_connect(node, Publish("t", b"x", 1, packet_id=1))
    client.transport.feed_eof()
    await settle(node)
    client.connection.eof_received()
    assert not client.transport.closing
    future.set_result(OUTCOME)
    await settle(node)
    assert [type(each) for each in client.received()] == [Connack, Ack]
    assert client.transport.closing
    assert node.listener.reasons == ["tcp_closed"]


@pytest.mark.interpreted
def test_eof_with_packets_that_wait_for_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "DELIVERIES_PER_ITERATION", 0)
    node = FakeNode()
    reader = node.connect("r")
    reader.subscribe("t")
    for goodbye in (True, False):
        writer = node.connect("w", will=Will("t", b"will"))
        packets: list[Any] = [Publish("t", b"1"), Publish("t", b"2", 1, packet_id=1)]
        writer.feed(*packets, *([Disconnect()] if goodbye else []))
        assert writer.connection.eof_received()
        node.run()
        assert reader.payloads() == [b"1", b"2"] + ([] if goodbye else [b"will"])
        assert writer.received() == [Ack(c.PUBACK, 1)]
        assert writer.transport.lost


def test_eof_ends_the_connection() -> None:
    node = FakeNode()
    client = node.connect()
    client.transport.feed_eof()
    node.run()
    assert client.transport.lost
    assert node.listener.reasons == ["tcp_closed"]


@pytest.mark.parametrize("goodbye", [False, True])
def test_packets_that_wait_are_taken_though_the_connection_is_lost(
    goodbye: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "DELIVERIES_PER_ITERATION", 0)
    node = FakeNode()
    reader = node.connect("r")
    reader.subscribe("t")
    writer = node.connect("w", will=Will("t", b"will"))
    writer.feed(*[Publish("t", b"%d" % number) for number in range(4)], *([Disconnect()] if goodbye else []))
    writer.vanish()
    assert reader.payloads() == [b"0", b"1", b"2", b"3"] + ([] if goodbye else [b"will"])
    assert node.listener.reasons == ["normal" if goodbye else "tcp_closed"]
    assert node.server.connections.keys() == {reader.connection}


@pytest.mark.asyncio
async def test_a_packet_of_a_lost_connection_that_would_have_to_wait_ends_it() -> None:
    node = FakeNode({"queue_full": "refuse", "max_queued_messages": 1, "max_inflight": 1})
    reader = node.connect("r")
    reader.subscribe("t", qos=1)
    for _ in range(2):
        node.publish("t", b"", 1)
    writer = node.connect("w", version=4)
    node.broker.budget.bytes = HIGH_WATER + 1
    writer.feed(Publish("t", b"waits", 1, packet_id=1), Publish("u", b"behind", 1, packet_id=2))
    published = node.metrics.messages_publish
    writer.vanish()
    await settle(node)
    assert node.metrics.messages_publish == published
    assert node.listener.reasons == ["tcp_closed"]


# --- writing --------------------------------------------------------------------------------------------------------


def test_who_does_not_read_what_it_asks_for_is_not_read() -> None:
    """Nobody's answers pile up without bound."""
    node = FakeNode({"max_outbox_bytes": 10_000, "slow_reader_timeout": 0})
    client = node.connect()
    client.subscribe("big")
    client.transport.block()
    for _ in range(4):
        node.publish("big", b"x" * 100_000)
        node.run()
    client.feed(*[Pingreq()] * 6000)
    assert client.channel.writer.backlog > 10_000
    assert not client.transport.reading
    client.transport.feed(PING)
    node.run()
    assert len(node.timers) == 0  # no slow_reader_timeout
    client.transport.unblock()
    packets = client.received()
    assert sum(isinstance(each, Pingresp) for each in packets) == 6001
    assert client.transport.reading


def test_whoever_still_holds_the_channel_of_a_lost_connection_does_no_harm() -> None:
    node = FakeNode()
    client = node.connect()
    client.vanish()
    link = client.channel.connection
    link.close()
    link.flush()
    link.abort()
    link.accepted(5)
    closing.shut_down(client.channel)
    node.run()
    assert len(node.timers) == 0
    assert node.metrics.client_disconnected == 1


# --- keep alive -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
def test_keep_alive(version: int) -> None:
    """[MQTT-3.1.2-22]: whole packets from the client count, pieces and output do not."""
    node = FakeNode()
    watcher = node.connect("watcher")
    watcher.subscribe("will")
    client = node.connect("c", keep_alive=10, version=version, will=Will("will", b"gone"))
    client.subscribe("t")
    node.pass_time(14.9)
    client.send(Pingreq())
    assert client.received() == [Pingresp()]
    node.pass_time(14.9)
    client.transport.feed(b"\x30\x05")
    node.publish("t")
    assert not client.closed
    client.received()
    node.pass_time(0.1)
    told = {c.REASON_STRING: "no packet within keep_alive_multiplier times Keep Alive"}
    assert client.received() == ([Disconnect(rc.KEEP_ALIVE_TIMEOUT, told)] if version == 5 else [])
    assert client.closed
    assert watcher.payloads() == [b"gone"]
    node.pass_time(LINGER)
    assert client.transport.aborted
    assert node.listener.reasons == ["keepalive_timeout"]


def test_keep_alive_does_not_count_while_we_do_not_read() -> None:
    node = FakeNode({"byte_rate": [100, 1.0]})
    client = node.connect(keep_alive=10)
    client.transport.feed(encode(Publish("t", bytes(10_000)), 5)[:5_050])
    assert not client.transport.reading
    node.pass_time(49)
    assert not client.closed and not client.transport.reading
    node.pass_time(1)
    assert client.transport.reading
    node.pass_time(14.9)
    assert not client.closed
    node.pass_time(0.1)
    assert client.closed


@pytest.mark.parametrize("keep_alive", [1, 10, 3000])
def test_keep_alive_takes_the_place_of_the_idle_timeout(keep_alive: int) -> None:
    node = FakeNode({"idle_timeout": 15.0})
    client = node.connect(keep_alive=keep_alive)
    assert len(node.timers) == 1
    node.pass_time(keep_alive * 1.5 - 0.1)
    assert not client.closed
    node.pass_time(0.1)
    assert client.closed


def test_keep_alive_of_who_came_at_the_last_moment() -> None:
    node = FakeNode({"idle_timeout": 10})
    client = node.open()
    node.pass_time(10)  # its CONNECT may lie in the socket
    client.connect(keep_alive=10)
    node.pass_time(14.9)
    assert not client.closed
    node.pass_time(0.1)
    assert client.closed
    assert node.metrics.disconnects.snapshot() == {"keepalive_timeout": 1}


def test_the_idle_timeout_is_over_while_the_connack_waits_for_the_disk() -> None:
    node = FakeNode({"idle_timeout": 10})
    client = node.open()
    client.connection.channel.state = CONNECTED
    node.pass_time(20)
    assert not client.closed


def test_without_keep_alive_nothing_is_timed() -> None:
    node = FakeNode({"idle_timeout": 15.0})
    client = node.connect(keep_alive=0)
    assert len(node.timers) == 0
    node.pass_time(1000)
    assert not client.closed


def test_keep_alive_of_a_connection_that_is_closing() -> None:
    node = FakeNode()
    client = node.connect(keep_alive=10)
    client.connection._closing = True
    node.pass_time(15)
    assert client.channel.state == 2


# --- ending ---------------------------------------------------------------------------------------------------------


def test_the_last_packet_is_read_before_the_connection_goes() -> None:
    """Our side is closed; the peer's bytes are read on, for a while, so that no reset swallows the DISCONNECT."""
    node = FakeNode()
    client = node.connect()
    closing.kick(client.channel)
    assert [each.reason_code for each in client.received()] == [rc.ADMINISTRATIVE_ACTION]  # type: ignore[union-attr]
    assert client.transport.wrote_eof and not client.transport.closing
    client.transport.feed(PING)
    node.pass_time(LINGER - 0.1)
    assert not client.transport.closing
    node.pass_time(0.1)
    assert client.transport.aborted
    assert node.listener.reasons == ["kicked"]
    client.connection.close()
    assert len(node.timers) == 0


def test_the_peer_closes_in_time() -> None:
    node = FakeNode()
    client = node.connect()
    closing.kick(client.channel)
    assert client.transport.wrote_eof
    client.transport.feed_eof()
    node.run()
    assert client.transport.lost and not client.transport.aborted
    assert node.listener.reasons == ["kicked"]
    assert len(node.timers) == 0


def test_who_said_goodbye_and_is_owed_nothing_is_not_waited_for() -> None:
    node = FakeNode()
    client = node.connect()
    client.send(Disconnect())
    assert client.transport.lost and not client.transport.wrote_eof
    assert node.listener.reasons == ["normal"]
    assert len(node.timers) == 0


def test_who_said_goodbye_still_gets_what_it_is_owed() -> None:
    node = FakeNode()
    client = node.connect()
    client.transport.capacity = 0
    client.feed(Pingreq(), Disconnect())
    assert client.transport.wrote_eof and not client.transport.closing
    client.transport.unblock()
    assert client.received() == [Pingresp()]
    node.pass_time(LINGER)
    assert client.transport.aborted


def test_a_held_connection_is_read_on_at_its_end() -> None:
    node = FakeNode({"byte_rate": [1, 1000.0]})
    client = node.connect()
    client.transport.feed(encode(Publish("t"), 5)[:3])
    assert not client.transport.reading
    closing.kick(client.channel)
    assert client.transport.reading


def test_a_hold_that_ends_after_the_end() -> None:
    node = FakeNode()
    client = node.connect()
    node.broker.budget.bytes = HIGH_WATER + 1
    client.feed(Pingreq())
    client.transport.half_closes = False
    closing.kick(client.channel)
    assert client.transport.closing
    node.run()
    assert node.listener.reasons == ["kicked"]
    client = node.connect()
    closing.kick(client.channel)
    client.connection._pause(SLOW)
    assert client.transport.reading
    client.connection._resume(SLOW)
    assert client.transport.reading


def test_a_transport_that_cannot_half_close() -> None:
    node = FakeNode()
    client = node.connect()
    client.transport.half_closes = False
    client.send(Disconnect())
    assert client.transport.lost and not client.transport.wrote_eof


def test_a_reset_that_the_loop_has_not_noticed() -> None:
    node = FakeNode()
    client = node.connect("c")
    client.transport.write_eof_error = OSError(107, "not connected")
    again = node.connect("c")
    assert client.transport.aborted
    assert not again.closed


def test_a_full_socket_is_closed_when_it_has_drained() -> None:
    node, client = blocked_reader()
    closing.kick(client.channel)
    assert client.transport.closing and not client.transport.lost
    client.transport.unblock()
    packets = client.received()
    assert isinstance(packets[-1], Disconnect) and packets[-1].reason_code == rc.ADMINISTRATIVE_ACTION
    assert client.transport.lost and not client.transport.aborted
    node, client = blocked_reader()
    closing.kick(client.channel)
    node.pass_time(LINGER)
    assert client.transport.aborted


def test_lost_for_a_reason() -> None:
    node = FakeNode()
    client = node.connect()
    client.transport.reset(TimeoutError())
    node.run()
    assert node.listener.reasons == ["tcp_closed"]
    assert (node.server.connections, node.context.channels) == ({}, {})


def test_the_end_in_the_middle_of_a_wait() -> None:
    """Packets behind one that closed the connection are not taken."""
    node = FakeNode()
    client = node.connect()
    node.broker.budget.bytes = HIGH_WATER + 1
    client.feed(Publish("t", b"x"), Connect(5, "again"), Publish("t", b"y"))
    node.run()
    assert [each.reason_code for each in client.received()] == [rc.PROTOCOL_ERROR]  # type: ignore[union-attr]
    assert node.metrics.messages_publish == 1
    assert client.transport.reading


def test_a_crowd_that_goes_at_once_goes_in_several_turns() -> None:
    node = FakeNode()
    watcher = node.connect("watcher")
    watcher.subscribe("will/#")
    a_turn = channel_module.DELIVERIES_PER_ITERATION // reader_module.LOSS_DELIVERIES + 1
    crowd = [node.connect(f"c{number}", will=Will(f"will/{number}", b"bye")) for number in range(3 * a_turn)]
    node.loop.run()
    for each in crowd:
        each.transport.reset()
    ended = [0]
    while len(node.listener.reasons) < len(crowd):
        node.loop.turn()
        ended.append(len(node.listener.reasons))
        assert ended[-1] - ended[-2] <= a_turn
    assert len(ended) > 3
    assert node.server.connections.keys() == {watcher.connection}
    node.run()
    assert len(watcher.messages()) == len(crowd)
