"""What is counted: every metric where it happens and nowhere else, gauges with their maxima, ends by their reason."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Auth, Subscribe, TopicFilter, Will
from taipan.broker.server import Server
from tests.support.clients import Clients, tcp, v5
from tests.support.wire import Publish

from .until_quiet import until_quiet

pytestmark = pytest.mark.asyncio(loop_scope="module")

Start = Callable[..., Awaitable[Clients]]

SETTINGS = {
    "zone": {
        "max_queued_messages": 5,
        "max_inflight": 3,
        "max_awaiting_rel": 4,
        "receive_maximum": 50,
        "await_rel_timeout": 60.0,
    },
    "access": {
        "users": [{"username": "ann", "password_hash": str(ScryptHash.create(b"secret"))}],
        "rules": [{"allow": False, "topics": ["no/#"]}],
    },
}


class Counting:
    """The difference that a test makes to the node's metrics."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.start()

    def start(self) -> None:
        self.before = self.server.metrics.snapshot()

    def changes(self) -> dict[str, int]:
        """Name -> by how much, for those that changed; counting goes on from here."""
        after = self.server.metrics.snapshot()
        changed = {name: after[name] - self.before[name] for name in after if after[name] != self.before[name]}
        self.before = after
        return changed

    def expect(self, **wanted: int) -> None:
        """Exactly these changed (``_`` for ``.``), bytes and totals of packets and messages aside."""
        aside = (
            *("bytes.", "packets.received", "packets.sent", "messages.received", "messages.sent"),
            *("client.check_acl", "client.acl.", "client.auth.ignore"),
        )
        changed = {
            name.replace(".", "_"): value for name, value in self.changes().items() if not name.startswith(aside)
        }
        for name in ("packets_pingreq_received", "packets_pingresp_sent"):
            if name not in wanted:
                changed.pop(name, None)
        assert changed == {name: value for name, value in wanted.items() if value}


@pytest_asyncio.fixture(loop_scope="module")
async def counting(clients: Clients) -> AsyncIterator[Counting]:
    yield Counting(clients.server)


@tcp
async def test_connect_and_disconnect(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.expect(
        packets_connect_received=1,
        packets_connack_sent=1,
        client_connect=1,
        client_connack=1,
        client_authenticate=1,
        client_auth_anonymous=1,
        client_auth_success=1,
        client_auth_success_anonymous=1,
        client_connected=1,
        session_created=1,
    )
    await peer.disconnect()
    counting.expect(packets_disconnect_received=1, client_disconnected=1, session_terminated=1)


@tcp
async def test_a_refused_password(clients: Clients, counting: Counting) -> None:
    await clients.peer().connect("x", username="ann", password=b"wrong", expect=None)
    changes = counting.changes()
    for name in ("connect.received", "connack.sent", "connack.error", "connack.auth_error"):
        assert changes[f"packets.{name}"] == 1, name
    for name in ("client.connect", "client.connack", "client.authenticate", "client.auth.failure"):
        assert changes[name] == 1, name
    for name in ("client.connected", "client.auth.success", "session.created", "client.disconnected"):
        assert name not in changes


@tcp
async def test_a_right_password(clients: Clients, counting: Counting) -> None:
    await clients.connect(username="ann", password=b"secret")
    changes = counting.changes()
    assert changes["client.auth.success"] == changes["client.connected"] == changes["client.authenticate"] == 1
    assert "client.auth.anonymous" not in changes


@tcp
async def test_sessions(clients: Clients, counting: Counting) -> None:
    name = clients.name()
    first = await clients.persistent(name)
    await first.disconnect()
    counting.start()
    second = await clients.persistent(name)
    changes = counting.changes()
    assert changes["session.resumed"] == 1 and "session.created" not in changes
    third = await clients.persistent(name)
    changes = counting.changes()
    assert changes["session.takeovered"] == changes["session.resumed"] == 1
    assert "session.created" not in changes and "session.terminated" not in changes
    fourth = await clients.connect(name)
    changes = counting.changes()
    assert changes["session.discarded"] == changes["session.created"] == 1
    await fourth.disconnect()
    assert counting.changes()["session.terminated"] == 1
    for peer in (second, third):
        peer.abort()


@tcp
async def test_an_expired_session_is_terminated(clients: Clients, counting: Counting) -> None:
    for seconds in (8000, 1):
        await clients.pass_time(seconds)  # the sessions that other tests have left
    peer = await clients.persistent(clients.name())
    await peer.disconnect()
    counting.start()
    await clients.pass_time(8000)
    await clients.pass_time(1)
    assert counting.changes()["session.terminated"] == 1


@tcp
async def test_subscribe_and_unsubscribe(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.start()
    await peer.subscribe(clients.topic, f"{clients.topic}/x")
    counting.expect(packets_subscribe_received=1, packets_suback_sent=1, client_subscribe=1)
    await peer.unsubscribe(clients.topic, f"{clients.topic}/x")
    counting.expect(packets_unsubscribe_received=1, packets_unsuback_sent=1, client_unsubscribe=1)
    refused = 0x87 if clients.version == 5 else 0x80
    await peer.subscribe("no/x", expect=[refused])
    counting.expect(
        packets_subscribe_received=1,
        packets_suback_sent=1,
        client_subscribe=1,
        packets_subscribe_error=1,
        packets_subscribe_auth_error=1,
    )


@tcp
async def test_ping(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.start()
    await peer.ping()
    counting.expect(packets_pingreq_received=1, packets_pingresp_sent=1)


@tcp
async def test_bytes(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.start()
    await peer.ping()
    changes = counting.changes()
    assert (changes["bytes.received"], changes["bytes.sent"]) == (2, 2)


@tcp
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_that_reaches_somebody(clients: Clients, counting: Counting, qos: int) -> None:
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe(clients.topic, qos=qos)
    counting.start()
    await publisher.publish(clients.topic, b"x", qos)
    await peer.expect_publish(clients.topic, b"x", qos)
    await peer.ping()
    wanted = {
        "packets_publish_received": 1,
        "packets_publish_sent": 1,
        f"messages_qos{qos}_received": 1,
        f"messages_qos{qos}_sent": 1,
        "messages_publish": 1,
        "messages_delivered": 1,
    }
    if qos:
        wanted["messages_acked"] = 1
    if qos == 1:
        wanted |= {"packets_puback_received": 1, "packets_puback_sent": 1}
    if qos == 2:
        for name in ("pubrec", "pubrel", "pubcomp"):
            wanted |= {f"packets_{name}_received": 1, f"packets_{name}_sent": 1}
    counting.expect(**wanted)


@tcp
async def test_totals(clients: Clients, counting: Counting) -> None:
    """Sums are sums."""
    peer = await clients.connect()
    await peer.subscribe(clients.topic, qos=2)
    for qos in range(3):
        await peer.publish(clients.topic, b"x", qos)
        await peer.expect_publish()
    await peer.ping()
    now = counting.server.metrics.snapshot()
    assert now["messages.received"] == sum(now[f"messages.qos{qos}.received"] for qos in range(3))
    assert now["messages.sent"] == sum(now[f"messages.qos{qos}.sent"] for qos in range(3))
    received = {"connect", "publish", "subscribe", "unsubscribe", "pingreq", "disconnect", "auth"}
    sent = {"connack", "publish", "suback", "unsuback", "pingresp", "disconnect", "auth"}
    both = {"puback", "pubrec", "pubrel", "pubcomp"}
    assert now["packets.received"] == sum(now[f"packets.{each}.received"] for each in received | both)
    assert now["packets.sent"] == sum(now[f"packets.{each}.sent"] for each in sent | both)


@tcp
async def test_a_message_for_nobody(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.start()
    await peer.publish(clients.topic, b"x", 0)
    counting.expect(
        packets_publish_received=1,
        messages_qos0_received=1,
        messages_publish=1,
        messages_dropped=1,
        messages_dropped_no_subscribers=1,
    )


@tcp
async def test_retained(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.start()
    await peer.publish(clients.topic, b"x", 1, True)
    assert counting.changes()["messages.retained"] == 1
    await peer.publish(clients.topic, b"", 1, True)


@tcp
async def test_delayed(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.start()
    await peer.publish(f"$delayed/5/{clients.topic}", b"x", 1)
    changes = counting.changes()
    assert changes["messages.delayed"] == 1 and "messages.publish" not in changes
    await clients.pass_time(6)
    assert counting.changes()["messages.publish"] == 1


@tcp
async def test_a_publish_that_is_not_allowed(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.start()
    await peer.publish("no/x", b"x", 1, expect=None)
    changes = counting.changes()
    assert changes["packets.publish.auth_error"] == changes["packets.puback.sent"] == changes["client.acl.deny"] == 1
    assert changes["client.check_acl"] == 1
    assert "messages.publish" not in changes


@tcp
async def test_a_publish_that_is_none(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.start()
    await peer.publish("/".join("a" * 200), b"x", 1, expect=None)
    changes = counting.changes()
    assert changes["packets.publish.error"] == 1
    assert "messages.publish" not in changes


@tcp
async def test_a_repeated_qos_2_publish(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.start()
    for dup in (False, True):
        await peer.send(Publish(clients.topic, b"x", 2, dup=dup, packet_id=9))
        await peer.expect_ack(c.PUBREC, 9, None)
    changes = counting.changes()
    assert changes["packets.publish.inuse"] == changes["messages.publish"] == 1
    assert changes["packets.publish.received"] == changes["packets.pubrec.sent"] == 2


@tcp
async def test_too_many_waiting_for_pubrel(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.start()
    for packet_id in range(1, 6):
        await peer.send(Publish(clients.topic, b"x", 2, packet_id=packet_id))
    await peer.ping()
    changes = counting.changes()
    assert changes["packets.publish.dropped"] == 1
    await clients.pass_time(61)
    await clients.pass_time(61)
    changes = counting.changes()
    assert changes["messages.dropped.await_pubrel_timeout"] == changes["messages.dropped.expired"] == 4


@tcp
async def test_acknowledgements_nobody_waits_for(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.start()
    await peer.puback(77)
    await peer.pubrec(77)
    await peer.pubrel(77)
    await peer.pubcomp(77)
    await peer.ping()
    changes = counting.changes()
    for name in ("puback", "pubrec", "pubrel", "pubcomp"):
        assert changes[f"packets.{name}.missed"] == changes[f"packets.{name}.received"] == 1, name


@tcp
async def test_deliveries_dropped(clients: Clients, counting: Counting) -> None:
    """The queue is full; QoS 0 to who is away is dropped; expired; No Local; too large."""
    peer = await clients.persistent(clients.name())
    await peer.subscribe(clients.topic, qos=2)
    await peer.disconnect()
    publisher = await clients.connect(version=5)
    counting.start()
    for number in range(7):
        await publisher.publish(clients.topic, b"%d" % number, 1)
    changes = counting.changes()
    assert changes["delivery.dropped.queue_full"] == changes["delivery.dropped"] == 2
    await publisher.publish(clients.topic, b"x", 0)
    changes = counting.changes()
    assert changes["delivery.dropped.qos0_msg"] == changes["delivery.dropped"] == 1
    for _ in range(5):
        await publisher.publish(clients.topic, b"e", 1, properties={c.MESSAGE_EXPIRY_INTERVAL: 2})
    counting.start()
    await clients.pass_time(3)
    back = await clients.persistent(peer.client_id, session_present=True)
    assert await until_quiet(back) == []
    changes = counting.changes()
    assert changes["delivery.dropped.expired"] == changes["delivery.dropped"] == 5


@tcp
@v5
async def test_deliveries_dropped_for_what_5_0_clients_ask(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect(properties={c.MAXIMUM_PACKET_SIZE: 100})
    await peer.subscribe(clients.topic, no_local=True, qos=1)
    counting.start()
    await peer.publish(clients.topic, b"x", 1)
    changes = counting.changes()
    assert changes["delivery.dropped.no_local"] == changes["delivery.dropped"] == 1
    other = await clients.connect()
    counting.start()
    await other.publish(clients.topic, bytes(200), 1)
    changes = counting.changes()
    assert changes["delivery.dropped.too_large"] == changes["delivery.dropped"] == 1


@tcp
@v5
async def test_auth(clients: Clients, counting: Counting) -> None:
    peer = await clients.connect()
    counting.start()
    await peer.send(Auth(0x19, {c.AUTHENTICATION_METHOD: "any"}))
    await peer.expect_disconnect(0x82)
    changes = counting.changes()
    assert changes["packets.auth.received"] == changes["packets.disconnect.sent"] == changes["client.disconnected"] == 1


# --- ends by their reason --------------------------------------------------------------------------------------------


@tcp
async def test_why_connections_ended(clients_of: Start) -> None:
    clients = await clients_of(listeners=[{"type": "tcp", "name": "counted"}], zone={"max_packet_size": 1000})
    server = clients.server
    (listener,) = server.listeners
    normal = await clients.connect("a")
    await normal.disconnect()
    dropped = await clients.connect("b")
    await dropped.drop()
    old = await clients.persistent("c")
    await clients.persistent("c")
    await old.expect_disconnect(0x8E)
    await clients.connect("c", True)
    late = await clients.connect("d", keep_alive=1)
    await clients.pass_time(2)
    await late.expect_disconnect(0x8D)
    large = await clients.connect("e")
    await large.send(b"\x30\xff\x7f")
    await large.expect_disconnect(0x95)
    silent = await clients.open()
    await clients.pass_time(11)
    await clients.pass_time(0.1)  # what lies in the socket is read before
    await silent.expect_closed()
    wrong = await clients.connect("f")
    await wrong.send(Subscribe(0, [TopicFilter("x")]))
    await wrong.expect_disconnect(0x82)
    await clients.close()
    while server.connections:
        await clients.pass_time(3)
    counts = listener.shutdown_count
    for reason in ("normal", "takeovered", "discarded", "keepalive_timeout", "packet_too_large", "idle_timeout"):
        assert counts.get(reason) == 1, (reason, counts)
    assert counts["protocol_error"] == 1
    assert counts["tcp_closed"] >= 1
    assert sum(counts.values()) == listener.accepted
    assert listener.current_connections == 0


# --- gauges ----------------------------------------------------------------------------------------------------------


@tcp
async def test_stats_and_their_maxima(clients_of: Start) -> None:
    clients = await clients_of()
    stats = clients.server.stats
    peers = [await clients.connect() for _ in range(3)]
    keeper = await clients.persistent("keeper")
    await keeper.subscribe("a", "b/#", "$share/g/c")
    await peers[0].subscribe("a", "$share/g/c", "$queue/d")
    await peers[0].publish("r/1", b"x", 1, True)
    await peers[0].publish("r/2", b"x", 1, True)
    found = stats.snapshot()
    wanted = {
        "connections": 4,
        "sessions": 4,
        "channels": 4,
        "subscriptions": 6,
        "suboptions": 6,
        "subscriptions.shared": 3,
        "topics": 4,
        "routes": 4,
        "retained": 2,
    }
    assert {name: found[f"{name}.count"] for name in wanted} == wanted
    assert {name: found[f"{name}.max"] for name in wanted} == wanted
    assert found["subscribers.count"] >= 2
    for peer in (*peers, keeper):
        await peer.disconnect()
    publisher = await clients.connect()
    await publisher.publish("r/1", b"", 1, True)
    found = stats.snapshot()
    assert found["connections.count"] == 1 and found["connections.max"] == 4
    assert found["sessions.count"] == 2 and found["sessions.max"] == 4
    assert found["subscriptions.count"] == 3 and found["subscriptions.max"] == 6
    assert found["retained.count"] == 1 and found["retained.max"] == 2


@tcp
async def test_a_will_is_a_message_published(clients: Clients, counting: Counting) -> None:
    dying = await clients.connect(will=Will(clients.topic, b"x", 1))
    counting.start()
    await dying.drop()
    changes = counting.changes()
    assert changes["messages.publish"] == changes["client.disconnected"] == 1
    assert "packets.publish.received" not in changes
