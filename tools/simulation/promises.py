"""The promises of a cluster, checked when the simulation has settled."""

from typing import TYPE_CHECKING

from taipan.broker.mqtt.topics import matches

from .client import Sent, SimulatedClient
from .node import SimulatedNode

if TYPE_CHECKING:
    from .world import World


def check(world: "World") -> None:
    """Report every violation in ``world.wrong``."""
    if not world.sessions_end:
        for subscriber in world.subscribers:
            _received(world, subscriber)
            _in_order(world, subscriber)
        for group, members in world.groups.items():
            _shared(world, group, members)
    elif not world.forced_out:
        for subscriber in world.subscribers:
            _received_by_one_that_moves(world, subscriber)
    if not world.forced_out:
        # With the disk of a node that was forced out, the messages that it had acknowledged are lost.
        _retained(world)
        _cleared(world)
        _commands_cleared(world)
    _owners(world)
    _tables(world)
    _left_behind(world)


def check_last(world: "World", last: list[Sent]) -> None:
    """Check that messages published without faults reached each subscriber, and one member of each group, once."""
    subscribers = [*world.subscribers, *world.ending]
    counts = [(subscriber.name, subscriber.filters, _counts(subscriber)) for subscriber in subscribers]
    for group, members in world.groups.items():
        counts.append((group, {group.split("/", 2)[2]: 2}, _counts(*members)))
    for name, filters, found in counts:
        for sent in last:
            count = found.get((sent.topic, sent.payload), 0)
            if count != any(matches(each, sent.topic) for each in filters):
                world.wrong(f"{name} got {sent} {count} times, which was published after all faults had ended")


def _counts(*subscribers: SimulatedClient) -> dict[tuple[str, bytes], int]:
    """Return how often each message arrived at a client."""
    found: dict[tuple[str, bytes], int] = {}
    for subscriber in subscribers:
        for topic, payload, _, _, retain in subscriber.received:
            if not retain:
                found[topic, payload] = found.get((topic, payload), 0) + 1
    return found


def _qos(subscriber: SimulatedClient, sent: Sent) -> int:
    """Return the QoS of the subscription; -1: not subscribed."""
    granted = [qos for each, qos in subscriber.filters.items() if matches(each, sent.topic)]
    return min(sent.qos, max(granted)) if granted else -1


def _received(world: "World", subscriber: SimulatedClient) -> None:
    """Check deliveries: acknowledged QoS 1 at least once, QoS 2 exactly once, and nothing twice at QoS 0 or 2."""
    counts = _counts(subscriber)
    durable = subscriber.expiry > 0 and subscriber.sessions == 1
    for sent in world.messages:
        qos = _qos(subscriber, sent)
        count = counts.get((sent.topic, sent.payload), 0)
        if qos < 0:
            if count:
                world.wrong(f"{subscriber.name} got {sent}, which it did not subscribe to")
            continue
        if durable and qos and sent.acknowledged and not sent.unrouted and not count:
            world.wrong(f"{subscriber.name} never got {sent}, which was acknowledged")
        if count > 1 and qos != 1 and sent.qos != 1 and not sent.again and subscriber.sessions == 1:
            world.wrong(f"{subscriber.name} got {sent} {count} times")


def _received_by_one_that_moves(world: "World", subscriber: SimulatedClient) -> None:
    """Check deliveries with ``fresh``. A message that was sent after the client subscribed in its last session, and was
    acknowledged, arrives at least once. Nothing at QoS 0 or 2 arrives twice, in any session; a message with DUP may be
    one that the client has forgotten with an earlier session."""
    if not subscriber.expiry:
        return  # nothing is carried over from a session that ends with its connection
    counts: dict[tuple[str, bytes], int] = {}
    for topic, payload, _, dup, retain in subscriber.received:
        if not retain:
            counts[topic, payload] = counts.get((topic, payload), 0) + (not dup)
    for sent in world.messages:
        qos = _qos(subscriber, sent)
        count = counts.get((sent.topic, sent.payload))
        since = sent.first_at > subscriber.subscribed_at
        if since and qos > 0 and sent.acknowledged and not sent.unrouted and count is None:
            world.wrong(f"{subscriber.name} never got {sent}, which was acknowledged after it had subscribed again")
        if count is not None and count > 1 and qos != 1 and sent.qos != 1 and not sent.again:
            world.wrong(f"{subscriber.name} got {sent} {count} times, in sessions that started again")


def _in_order(world: "World", subscriber: SimulatedClient) -> None:
    """Check order: messages of one publisher and topic that one node accepted arrive in order in one session, at their
    first arrival. Messages that a publisher sends after it moved may overtake those that its earlier node has yet to
    forward. Exceptions: messages first sent before the session began, among those that are sent again, and messages
    accepted by a node that had not read the routes."""
    taken = {(sent.publisher, sent.topic, sent.number): sent for sent in world.messages if not sent.again}
    begun = 0.0
    seen: set[tuple[str, bytes]] = set()
    last: dict[tuple[str, str, str, str], int] = {}
    for index, (topic, payload, _, _, retain) in enumerate(subscriber.received):
        if index in subscriber.begun:
            begun = subscriber.begun[index]
            seen.clear()
            last.clear()
        if retain or (topic, payload) in seen:
            continue
        seen.add((topic, payload))
        publisher, number, qos = payload.decode().split()
        # Order is promised among messages of one QoS.
        sent = taken.get((publisher, topic, int(number)))
        if sent is None or not sent.node or sent.unrouted or sent.first_at < begun:
            continue
        key = (publisher, topic, qos, sent.node)
        if int(number) < last.get(key, 0):
            world.wrong(f"{subscriber.name} got {publisher}#{number} qos {qos} on {topic} after #{last[key]}")
        last[key] = int(number)


def _shared(world: "World", group: str, members: list[SimulatedClient]) -> None:
    """Check shared subscriptions: an acknowledged message reaches some member once; twice only if the session of a
    member ended or QoS 1 was sent again."""
    topic_filter = group.split("/", 2)[2]
    counts = _counts(*members)
    lost_session = any(member.sessions > 1 for member in members)
    for sent in world.messages:
        if not matches(topic_filter, sent.topic):
            continue
        count = counts.get((sent.topic, sent.payload), 0)
        if sent.qos and sent.acknowledged and not sent.unrouted and not count and not lost_session:
            world.wrong(f"no member of {group} got {sent}, which was acknowledged")
        if count > 1 and sent.qos == 2 and not sent.again and not lost_session:
            world.wrong(f"members of {group} got {sent} {count} times")


def _owners(world: "World") -> None:
    """Check that each session is on one node."""
    for client in world.clients:
        nodes = [node.name for node in world.nodes if node.running and client.name in node.server.broker.sessions]
        if len(nodes) > 1:
            world.wrong(f"the session of {client.name} is on {' and '.join(nodes)}")
        elif client.expiry and not nodes:
            world.wrong(f"the session of {client.name} is nowhere")


def retained_of(node: SimulatedNode) -> dict[str, bytes]:
    retained = node.server.broker.retained
    messages = {topic: retained.get(topic) for topic in sorted(retained.topics())}
    return {topic: message.payload for topic, message in messages.items() if message is not None}


def retained_agrees(world: "World") -> bool:
    found = [retained_of(node) for node in world.nodes]
    return "retained" not in world.features or all(each == found[0] for each in found)


def _retained(world: "World") -> None:
    """Check that the retained message of each topic is the last acknowledged one, or a later one."""
    if "retained" not in world.features:
        return
    found = retained_of(world.nodes[0])
    last: dict[tuple[str, str], Sent] = {}
    alone = {client.topic for client in world.retaining} | {each.device.topic for each in world.controllers}
    for sent in world.messages:
        if sent.retain and sent.acknowledged and sent.topic not in alone:
            last[sent.topic, sent.publisher] = sent
    for (topic, publisher), sent in last.items():
        payload = found.get(topic)
        if payload is None:
            world.wrong(f"nothing is retained on {topic}, though {sent} was acknowledged")
            continue
        by, number, _ = payload.decode().split()
        if by == publisher and int(number) < sent.number:
            of_publisher = [each for each in world.messages if each.publisher == by and each.topic == topic]
            older = next(each for each in of_publisher if each.number == int(number))
            if older.qos == 1 and sent.qos == 2 and older.last_at > older.first_at:
                continue  # both were sent again, and only QoS 1 takes effect again
            world.wrong(f"retained on {topic} is {payload!r}, though {sent} was acknowledged")


def _cleared(world: "World") -> None:
    """Check topics with one publisher: the last acknowledged change, or a later one, applies."""
    found = retained_of(world.nodes[0])
    for client in world.retaining:
        payload = found.get(client.topic, b"")
        sent = [each for each in world.messages if each.publisher == client.name]
        last = max((number for number, each in enumerate(sent) if each.acknowledged), default=-1)
        possible = sent[max(last, 0) :]
        # It is unknown when a node receives a message that another one has acknowledged.
        possible += [each for each in sent[:last] if each.again or not each.node]
        if payload not in {each.payload for each in possible} | ({b""} if last < 0 else set()):
            world.wrong(f"retained on {client.topic} is {payload!r}, not of {possible}")


def _commands_cleared(world: "World") -> None:
    """Check that no command is retained that was cleared after its acknowledgement or after its arrival."""
    found = retained_of(world.nodes[0])
    for controller in world.controllers:
        device = controller.device
        payload = found.get(device.topic, b"")
        clears = [each for each in world.messages if each.publisher == controller.name and each.acknowledged]
        # If a message was sent to several nodes, one may accept it after it was received from another.
        of_it = [each for each in world.messages if each.publisher == device.name and each.payload == payload]
        for sent in of_it:
            after = sent.acknowledged_at
            if sent.node and not sent.again:
                after = min([after, *(each for each in controller.taken.get(payload, ()) if each >= sent.last_at)])
            followed = next((each for each in clears if each.first_at >= after), None)
            if payload and followed is not None:
                world.wrong(f"retained on {device.topic} is {payload!r}, though {followed} was acknowledged after it")


def rows_of(node: SimulatedNode) -> dict[str, str]:
    return {key: row.value for key, row in sorted(node.rows.items())}


def rows_agree(world: "World") -> bool:
    found = [rows_of(node) for node in world.nodes]
    return all(each == found[0] for each in found)


def _tables(world: "World") -> None:
    """Check that an acknowledged change of a row is not overwritten by an earlier one."""
    rows = rows_of(world.nodes[0])
    for key, changes in world.row_changes.items():
        value = rows.get(key)
        made = next((change for change in changes if change.value == value), None)
        for change in changes:
            if change.acknowledged and (made is None or made.end < change.start):
                world.wrong(f"row {key} is {value!r}, though {change.value!r} was acknowledged later")


def _left_behind(world: "World") -> None:
    """Check that every move has ended, and that no internal session exists except those of links."""
    for node in world.nodes:
        for name in getattr(node.server.broker.sessions, "internal", {}):
            if not name.startswith("\0link:"):
                world.wrong(f"{node.name} still has the session {name!r}")
        moves = [key for table, key, _ in node.server.tables.rows() if table == "handover"]
        if moves:
            world.wrong(f"{node.name} still has {len(moves)} moves of sessions in hand")
