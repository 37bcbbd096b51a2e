"""Whatever packet there is: encoding and decoding give it back, however the bytes are split."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.decoder import Decoder, TopicNames
from taipan.broker.mqtt.encoder import Outgoing, encode
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    TopicFilter,
    Unsuback,
    Unsubscribe,
    Will,
)
from taipan.broker.mqtt.properties import (
    BINARY,
    BYTE,
    FOUR_BYTE,
    STRING,
    STRING_PAIR,
    TABLE,
    TWO_BYTE,
    VARIABLE,
    WILL,
    read,
    write,
)
from tests.packets import CLIENT, SERVER, comparable

_GREATEST = {BYTE: 255, TWO_BYTE: 65535, FOUR_BYTE: 0xFFFF_FFFF, VARIABLE: c.MAX_REMAINING_LENGTH}

strings = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=20)
filters = strings.filter(bool) | st.sampled_from(["#", "a/+/b", "$share/g/a", "$queue/#", "/"])
blobs = st.binary(max_size=200)
packet_ids = st.integers(1, 65535)
qos = st.integers(0, 2)


def _value(identifier: int, packet: int) -> st.SearchStrategy[Any]:
    row = TABLE[identifier]
    if identifier == c.RESPONSE_TOPIC:
        return names
    if row.type == STRING:
        return strings
    if row.type == BINARY:
        return blobs
    if row.type == STRING_PAIR:
        return st.lists(st.tuples(strings, strings), min_size=1, max_size=4)
    numbers = st.integers(row.least, min(row.greatest, _GREATEST[row.type]))
    if identifier == c.SUBSCRIPTION_IDENTIFIER and packet == c.PUBLISH:
        return st.lists(numbers, min_size=1, max_size=4)
    return numbers


@st.composite
def properties(draw: st.DrawFn, packet: int, without: tuple[int, ...] = ()) -> dict[int, Any]:
    allowed = [row.identifier for row in TABLE.values() if row.packets >> packet & 1 and row.identifier not in without]
    chosen = draw(st.lists(st.sampled_from(allowed), unique=True, max_size=6))
    found = {identifier: draw(_value(identifier, packet)) for identifier in chosen}
    if c.AUTHENTICATION_DATA in found and packet in (c.CONNECT, c.AUTH):
        found.setdefault(c.AUTHENTICATION_METHOD, draw(strings))
    return found


def _only5(version: int, packet: int, without: tuple[int, ...] = ()) -> st.SearchStrategy[dict[int, Any]]:
    return properties(packet, without) if version == 5 else st.just({})


@st.composite
def wills(draw: st.DrawFn, version: int) -> Will:
    return Will(draw(names), draw(blobs), draw(qos), draw(st.booleans()), draw(_only5(version, WILL)))


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    username = draw(st.none() | strings)
    password = draw(st.none() | blobs) if username is not None or version == 5 else None
    return Connect(
        version,
        draw(strings),
        draw(st.booleans()),
        draw(st.integers(0, 65535)),
        username,
        password,
        draw(st.none() | wills(version)),
        draw(_only5(version, c.CONNECT)),
        version != 5 and draw(st.booleans()),
    )


@st.composite
def messages(draw: st.DrawFn, version: int, sender: str) -> Message:
    level = draw(qos)
    found = draw(_only5(version, c.PUBLISH, (c.SUBSCRIPTION_IDENTIFIER,) if sender == CLIENT else ()))
    topic = draw(st.just("") | names) if c.TOPIC_ALIAS in found else draw(names)
    return Message(
        topic,
        draw(blobs),
        level,
        draw(st.booleans()),
        found,
        packet_id=draw(packet_ids) if level else 0,
        dup=level > 0 and draw(st.booleans()),
    )


@st.composite
def acks(draw: st.DrawFn, version: int) -> Ack | int:
    kind = draw(st.integers(c.PUBACK, c.PUBCOMP))
    packet_id = draw(packet_ids)
    if version != 5:
        return kind << 16 | packet_id
    codes = (0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99) if kind <= c.PUBREC else (0, 0x92)
    code = draw(st.sampled_from(codes))
    found = draw(properties(kind))
    return Ack(kind, packet_id, code, found) if code or found else kind << 16 | packet_id


@st.composite
def subscribes(draw: st.DrawFn, version: int) -> Subscribe:
    entries = []
    for filter in draw(st.lists(filters, min_size=1, max_size=5)):
        if version == 5:
            shared = filter.startswith(("$share", "$queue"))
            options = (draw(st.booleans()) and not shared, draw(st.booleans()), draw(qos))
            entries.append(TopicFilter(filter, draw(qos), *options))
        else:
            entries.append(TopicFilter(filter, draw(qos)))
    return Subscribe(draw(packet_ids), entries, draw(_only5(version, c.SUBSCRIBE)))


@st.composite
def auths(draw: st.DrawFn, codes: tuple[int, ...]) -> Auth:
    found = draw(properties(c.AUTH))
    found.setdefault(c.AUTHENTICATION_METHOD, draw(strings))
    return Auth(draw(st.sampled_from(codes)), found)


@st.composite
def client_packets(draw: st.DrawFn, version: int) -> Outgoing:
    """Anything a client sends after CONNECT."""
    every: list[st.SearchStrategy[Any]] = [
        messages(version, CLIENT),
        acks(version),
        subscribes(version),
        st.builds(Unsubscribe, packet_ids, st.lists(filters, min_size=1), _only5(version, c.UNSUBSCRIBE)),
        st.builds(Pingreq),
    ]
    if version == 5:
        codes = st.sampled_from((0, 4, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x99))
        every += [auths((0x18, 0x19)), st.builds(Disconnect, codes, properties(c.DISCONNECT))]
    else:
        every.append(st.builds(Disconnect))
    found: Outgoing = draw(st.one_of(every))
    return found


@st.composite
def server_packets(draw: st.DrawFn, version: int) -> Outgoing:
    """Anything a server sends."""
    every: list[st.SearchStrategy[Any]] = [messages(version, SERVER), acks(version), st.builds(Pingresp)]
    if version == 5:
        connack = st.sampled_from((0, 0x80, 0x84, 0x85, 0x8A, 0x8C, 0x95, 0x9F))
        suback = st.sampled_from((0, 1, 2, 0x80, 0x87, 0x8F, 0xA2))
        unsuback = st.sampled_from((0, 0x11, 0x87))
        every += [
            st.builds(Connack, connack, st.booleans(), properties(c.CONNACK)),
            st.builds(Suback, packet_ids, st.lists(suback, min_size=1), properties(c.SUBACK)),
            st.builds(Unsuback, packet_ids, st.lists(unsuback, min_size=1), properties(c.UNSUBACK)),
            st.builds(Disconnect, st.sampled_from((0, 0x81, 0x8E, 0x9C, 0xA2)), properties(c.DISCONNECT)),
            auths((0, 0x18)),
        ]
    else:
        connack = st.sampled_from((0, 0x84, 0x85, 0x86, 0x87, 0x88))
        every += [
            st.builds(Connack, connack, st.just(False) if version == 3 else st.booleans()),
            st.builds(Suback, packet_ids, st.lists(st.sampled_from((0, 1, 2, 0x80)), min_size=1)),
            st.builds(Unsuback, packet_ids, st.just([])),
        ]
    found: Outgoing = draw(st.one_of(every))
    return found


versions = st.sampled_from((3, 4, 5))


def _decoder(version: int, sender: str = CLIENT) -> Decoder:
    decoder = Decoder(TopicNames(), 1_000_000, 1_000_000, sender == CLIENT)
    decoder.version = version
    return decoder


def _all(packets: list[Any]) -> list[Any]:
    return [comparable(packet) for packet in packets]


@settings(deadline=None)
@given(st.data(), versions, st.sampled_from((CLIENT, SERVER)))
def test_decode_of_encode_is_the_packet(data: st.DataObject, version: int, sender: str) -> None:
    packet = data.draw(client_packets(version) if sender == CLIENT else server_packets(version))
    wire = encode(packet, version)
    assert _all(_decoder(version, sender).feed(wire)) == [comparable(packet)]


@settings(deadline=None)
@given(st.data(), versions)
def test_decode_of_encode_is_the_connect(data: st.DataObject, version: int) -> None:
    connect = data.draw(connects(version))
    decoder = _decoder(0)
    assert decoder.feed(encode(connect, version)) == [connect]
    assert decoder.version == version


@settings(deadline=None, max_examples=50)
@given(st.data(), versions)
def test_all_splits_give_the_same_packets(data: st.DataObject, version: int) -> None:
    connect = data.draw(connects(version))
    packets = [connect, *data.draw(st.lists(client_packets(version), max_size=3))]
    wire = b"".join(encode(packet, version) for packet in packets)
    for at in range(len(wire) + 1):
        decoder = _decoder(0)
        assert _all(decoder.feed(wire[:at]) + decoder.feed(wire[at:])) == _all(packets)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=10)))
    decoder = _decoder(0)
    found: list[Any] = []
    for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        found += decoder.feed(wire[start:stop])
    assert _all(found) == _all(packets)
    assert decoder.pending == 0


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from((0, 3, 4, 5)), st.booleans())
def test_any_bytes_split_anywhere_give_the_same(junk: bytes, version: int, strict: bool) -> None:
    whole, pieces = Decoder(TopicNames(strict), 200, 200), Decoder(TopicNames(strict), 200, 200)
    whole.version = pieces.version = version
    found: list[Any] = []
    for at in range(len(junk)):
        found += pieces.feed(junk[at : at + 1])
    assert _all(whole.feed(junk)) == _all(found)
    assert whole.pending == pieces.pending


@settings(deadline=None)
@given(st.data(), st.sampled_from((WILL, *range(1, 12), 14, 15)))
def test_properties_come_back(data: st.DataObject, packet: int) -> None:
    found = data.draw(properties(packet))
    wire = write(found)
    assert read(b"x" + wire + b"y", 1, len(wire) + 2, packet, False) == (found, len(wire) + 1)
