"""Shared subscriptions: who gets a message, what becomes of it when that member goes, and which forms are none."""

from collections.abc import Awaitable, Callable
from itertools import chain, pairwise

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Subscribe, TopicFilter
from tests.support.clients import Clients, tcp, v5
from tests.support.peer import Peer

from .until_quiet import payloads, until_quiet

pytestmark = pytest.mark.asyncio(loop_scope="module")

Start = Callable[..., Awaitable[Clients]]


async def group(clients: Clients, size: int, qos: int = 1, name: str = "g", filter: str = "") -> list[Peer]:
    members = [await clients.connect() for _ in range(size)]
    for member in members:
        await member.subscribe(f"$share/{name}/{filter or clients.topic}", qos=qos)
    return members


async def shares(members: list[Peer]) -> list[list[int]]:
    return [[int(each) for each in await payloads(member)] for member in members]


# --- one message, one member -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_each_message_goes_to_one_member(clients: Clients, qos: int) -> None:
    """[MQTT-4.8.2-4]"""
    members = await group(clients, 3, qos)
    publisher = await clients.connect()
    for number in range(60):
        await publisher.publish(clients.topic, b"%d" % number, qos)
    got = await shares(members)
    assert sorted(chain.from_iterable(got)) == list(range(60))
    assert all(got), "a member went empty"
    assert all(each == sorted(each) for each in got)


async def test_groups_and_ordinary_subscriptions_each_get_their_copy(clients: Clients) -> None:
    """Equal names with different filters are different groups (MQTT 5.0 section 4.8.2)."""
    peer = await clients.connect()
    topic = f"{clients.topic}/x"
    for filter in (f"$share/a/{topic}", f"$share/b/{topic}", f"$share/a/{clients.topic}/+", topic):
        await peer.subscribe(filter)
    await peer.publish(topic, b"7")
    assert await shares([peer]) == [[7, 7, 7, 7]]


@pytest.mark.parametrize(("granted", "published", "delivered"), [(0, 2, 0), (1, 2, 1), (2, 1, 1)])
async def test_qos_is_capped_by_the_members_grant(
    clients: Clients, granted: int, published: int, delivered: int
) -> None:
    """[MQTT-4.8.2-3]"""
    (member,) = await group(clients, 1, granted)
    await member.publish(clients.topic, b"x", published)
    await member.expect_publish(clients.topic, b"x", delivered)


async def test_no_retained_message_on_subscribing(clients: Clients) -> None:
    """MQTT 5.0 section 4.8.2."""
    publisher = await clients.connect()
    await publisher.publish(clients.topic, b"kept", 1, True)
    (member,) = await group(clients, 1)
    await member.nothing()
    await publisher.publish(clients.topic, b"", 1, True)


async def test_queue_is_a_group_of_its_own(clients: Clients) -> None:
    members = [await clients.connect() for _ in range(2)]
    for member in members:
        await member.subscribe(f"$queue/{clients.topic}", qos=1)
    for number in range(30):
        await members[0].publish(clients.topic, b"%d" % number)
    got = await shares(members)
    assert sorted(chain.from_iterable(got)) == list(range(30))
    await members[0].unsubscribe(f"$queue/{clients.topic}")
    await members[0].publish(clients.topic, b"30", 1)
    assert await shares(members) == [[], [30]]


@v5
async def test_identifiers_come_with_shared_deliveries(clients: Clients) -> None:
    """[MQTT-3.3.4-3]"""
    peer = await clients.connect()
    await peer.subscribe(f"$share/g/{clients.topic}", qos=1, identifier=9)
    await peer.publish(clients.topic, b"x", 1)
    assert (await peer.expect_publish()).properties == {c.SUBSCRIPTION_IDENTIFIER: [9]}


async def test_unsubscribe_needs_the_whole_string(clients: Clients) -> None:
    """[MQTT-3.10.4-1]"""
    (member,) = await group(clients, 1)
    await member.unsubscribe(clients.topic, f"$share/h/{clients.topic}", expect=[0x11, 0x11])
    await member.publish(clients.topic, b"1", 1)
    await member.expect_publish(payload=b"1")
    await member.unsubscribe(f"$share/g/{clients.topic}")
    await member.publish(clients.topic, b"2", 1)
    await member.nothing()


@pytest.mark.parametrize("filter", ["#", "+/#", "+/brokers/secret"])
async def test_the_inner_filters_wildcard_does_not_match_dollar_topics(clients: Clients, filter: str) -> None:
    """[MQTT-4.7.2-1]"""
    (member,) = await group(clients, 1, filter=filter, name=clients.topic)
    await member.publish("$other/brokers/secret", b"unseen", 1)
    await member.nothing()
    await member.unsubscribe(f"$share/{clients.topic}/{filter}")


@pytest.mark.parametrize(
    "filter", ["$share/g", "$share/g/", "$share//x", "$share/", "$share/a+/x", "$share/a#/x", "$share/+/x", "$share/#"]
)
async def test_a_form_that_is_none_is_refused(clients: Clients, filter: str) -> None:
    """[MQTT-4.8.2-1] [MQTT-4.8.2-2]"""
    peer = await clients.connect()
    await peer.send(Subscribe(1, [TopicFilter(filter)]))
    packet = await peer.receive()
    codes = getattr(packet, "reason_codes", None)
    if clients.version == 5:
        assert codes == [0x8F] or getattr(packet, "reason_code", None) == 0x82
    else:
        assert codes == [0x80]


# --- members that are away -------------------------------------------------------------------------------------------


async def test_a_connected_member_is_preferred(clients: Clients) -> None:
    away = await clients.persistent(clients.name())
    await away.subscribe(f"$share/g/{clients.topic}", qos=1)
    await away.disconnect()
    (here,) = await group(clients, 1)
    for number in range(10):
        await here.publish(clients.topic, b"%d" % number, 1)
    assert await shares([here]) == [list(range(10))]
    back = await clients.persistent(away.client_id, session_present=True)
    await back.nothing()


async def test_where_all_are_away_one_of_them_keeps_it(clients: Clients) -> None:
    away = await clients.persistent(clients.name())
    await away.subscribe(f"$share/g/{clients.topic}", qos=1)
    await away.disconnect()
    publisher = await clients.connect()
    await publisher.publish(clients.topic, b"1", 1)
    back = await clients.persistent(away.client_id, session_present=True)
    await back.expect_publish(clients.topic, b"1", 1)


async def test_a_member_whose_session_ended_gets_nothing_more(clients: Clients) -> None:
    members = await group(clients, 2)
    await members[0].drop()
    for number in range(20):
        await members[1].publish(clients.topic, b"%d" % number, 1)
    assert await shares([members[1]]) == [list(range(20))]


async def test_unacknowledged_qos_1_goes_to_another_when_the_session_ends(clients: Clients) -> None:
    """MQTT 5.0 section 4.8.2; nobody is delivered to who is dead."""
    dying, other = await group(clients, 2)
    publisher = await clients.connect()
    for number in range(20):
        await publisher.publish(clients.topic, b"%d" % number, 1)
    seen = await until_quiet(dying, acknowledge=False)
    assert seen
    first = [int(each.payload) for each in await until_quiet(other)]
    await dying.disconnect()
    again = [int(each.payload) for each in await until_quiet(other)]
    assert sorted(first + again) == list(range(20))


@v5
async def test_sent_qos_2_dies_with_its_session_and_unsent_goes_to_another(clients: Clients) -> None:
    """[MQTT-4.8.2-5]"""
    dying = await clients.connect(properties={c.RECEIVE_MAXIMUM: 1})
    await dying.subscribe(f"$share/g/{clients.topic}", qos=2)
    publisher = await clients.connect()
    for number in range(5):
        await publisher.publish(clients.topic, b"%d" % number, 2)
    (sent,) = await until_quiet(dying, acknowledge=False)
    (other,) = await group(clients, 1, 2)
    await dying.disconnect()
    left = set(range(5)) - {int(sent.payload)}
    assert {int(each) for each in await payloads(other)} == left


@v5
async def test_a_negative_acknowledgement_discards_it(clients: Clients) -> None:
    """[MQTT-4.8.2-6]"""
    refusing = await clients.connect()
    await refusing.subscribe(f"$share/g/{clients.topic}", qos=1)
    await refusing.publish(clients.topic, b"1", 1)
    message = await refusing.expect_publish(acknowledge=False)
    (other,) = await group(clients, 1)
    await refusing.puback(message.packet_id, 0x83)
    await refusing.nothing()
    await other.nothing()
    await refusing.disconnect()
    await other.nothing()


@v5
async def test_started_qos_2_waits_for_its_member(clients: Clients) -> None:
    """[MQTT-4.8.2-4]"""
    away = await clients.persistent(clients.name())
    await away.subscribe(f"$share/g/{clients.topic}", qos=2)
    await away.publish(clients.topic, b"1", 2)
    sent = await away.expect_publish(acknowledge=False)
    await away.drop()
    (other,) = await group(clients, 1, 2)
    await other.nothing()
    back = await clients.persistent(away.client_id, session_present=True)
    again = await back.expect_publish(clients.topic, b"1", 2, dup=True)
    assert again.packet_id == sent.packet_id
    await other.nothing()


# --- strategies ------------------------------------------------------------------------------------------------------


async def spread(clients: Clients, topics: list[str], publishers: int = 1) -> list[list[str]]:
    """What three members got of one message a topic and publisher, as ``topic:publisher``."""
    members = await group(clients, 3, filter=f"{clients.topic}/#")
    senders = [await clients.connect(f"{clients.topic}-sender-{number}") for number in range(publishers)]
    for topic in topics:
        for number, sender in enumerate(senders):
            await sender.publish(f"{clients.topic}/{topic}", f"{topic}:{number}".encode(), 1)
    return [[each.decode() for each in await payloads(member)] for member in members]


@tcp
async def test_round_robin_takes_turns_for_each_publisher(clients_of: Start) -> None:
    got = await spread(await clients_of(shared={"strategy": "round_robin"}), [f"{n}" for n in range(9)], 2)
    for publisher in range(2):
        rounds = [[int(each.split(":")[0]) for each in mine if each.endswith(f":{publisher}")] for mine in got]
        assert sorted(len(mine) for mine in rounds) == [3, 3, 3]
        assert all(b - a == 3 for mine in rounds for a, b in pairwise(mine))


@tcp
async def test_round_robin_per_group_takes_turns_for_all(clients_of: Start) -> None:
    got = await spread(await clients_of(shared={"strategy": "round_robin_per_group"}), [f"{n}" for n in range(9)], 2)
    assert [len(mine) for mine in got] == [6, 6, 6]


@tcp
async def test_sticky_stays_until_the_member_goes(clients_of: Start) -> None:
    clients = await clients_of(shared={"strategy": "sticky"})
    members = await group(clients, 3)
    publisher = await clients.connect()
    for number in range(12):
        await publisher.publish(clients.topic, b"%d" % number, 1)
    got = await shares(members)
    assert sorted(map(len, got)) == [0, 0, 12]
    favourite = members.pop(next(index for index, mine in enumerate(got) if mine))
    await favourite.disconnect()
    for number in range(12):
        await publisher.publish(clients.topic, b"%d" % number, 1)
    assert sorted(map(len, await shares(members))) == [0, 12]


@tcp
async def test_hash_of_the_client_keeps_a_publisher_with_one_member(clients_of: Start) -> None:
    got = await spread(await clients_of(shared={"strategy": "hash_clientid"}), ["a", "b", "c", "d"], 12)
    for publisher in range(12):
        assert sum(any(each.endswith(f":{publisher}") for each in mine) for mine in got) == 1
    assert sum(map(bool, got)) > 1


@tcp
async def test_hash_of_the_topic_keeps_a_topic_with_one_member(clients_of: Start) -> None:
    topics = [f"{number}" for number in range(12)]
    got = await spread(await clients_of(shared={"strategy": "hash_topic"}), topics, 3)
    for topic in topics:
        assert sum(any(each.startswith(f"{topic}:") for each in mine) for mine in got) == 1
    assert sum(map(bool, got)) > 1


@tcp
async def test_random_reaches_all(clients_of: Start) -> None:
    got = await spread(await clients_of(shared={"strategy": "random"}), [f"{n}" for n in range(60)])
    assert sorted(int(each.split(":")[0]) for mine in got for each in mine) == list(range(60))
    assert all(got)
