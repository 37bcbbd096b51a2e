"""The codec of MQTT-SN: what is encoded is decoded, and no datagram does more than be refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.gateways.mqttsn import codec as sn

TWO = st.integers(0, 0xFFFF)
MSG_ID = st.integers(1, 0xFFFF)
BYTE = st.integers(0, 0xFF)
QOS = st.integers(0, 2)
TEXT = st.text(max_size=300)
NAME = st.text(min_size=1, max_size=300)
ID_TYPE = st.sampled_from((sn.NORMAL, sn.PREDEFINED, sn.SHORT))
FLAG = st.booleans()


@st.composite
def publishes(draw: st.DrawFn) -> sn.SnPublish:
    qos = draw(st.integers(-1, 2))
    msg_id = draw(MSG_ID) if qos > 0 else 0
    return sn.SnPublish(draw(TWO), draw(ID_TYPE), draw(st.binary(max_size=300)), qos, draw(FLAG), draw(FLAG), msg_id)


@st.composite
def subscribes(draw: st.DrawFn) -> sn.SnSubscribe:
    id_type, remove = draw(ID_TYPE), draw(FLAG)
    topic = draw(NAME) if id_type == sn.NORMAL else draw(TWO)
    return sn.SnSubscribe(draw(MSG_ID), topic, id_type, 0 if remove else draw(QOS), draw(FLAG), remove)


def simple(kinds: tuple[int, ...]) -> st.SearchStrategy[int]:
    return st.sampled_from(kinds)


PACKETS = st.one_of(
    publishes(),
    subscribes(),
    st.builds(sn.SnAdvertise, BYTE, TWO),
    st.builds(sn.SnSearchGw, BYTE),
    st.builds(sn.SnGwInfo, BYTE, st.binary(max_size=20)),
    st.builds(sn.SnConnect, TEXT, FLAG, FLAG, TWO, BYTE),
    st.builds(sn.SnConnack, BYTE),
    st.builds(sn.SnWillTopic, NAME, QOS, FLAG, FLAG),
    st.builds(sn.SnWillTopic, st.just(""), update=FLAG),
    st.builds(sn.SnWillMsg, st.binary(max_size=300), FLAG),
    st.builds(sn.SnRegister, TWO, MSG_ID, NAME),
    st.builds(sn.SnRegack, TWO, MSG_ID, BYTE),
    st.builds(sn.SnPuback, TWO, TWO, BYTE),
    st.builds(sn.SnReply, simple((sn.PUBREC, sn.PUBREL, sn.PUBCOMP, sn.UNSUBACK)), MSG_ID),
    st.builds(sn.SnSuback, QOS, TWO, MSG_ID, BYTE),
    st.builds(sn.SnPingreq, TEXT),
    st.builds(sn.SnDisconnect, st.none() | TWO),
    st.builds(sn.SnSimple, simple((sn.WILLTOPICREQ, sn.WILLMSGREQ, sn.PINGRESP))),
    st.builds(sn.SnWillResponse, simple((sn.WILLTOPICRESP, sn.WILLMSGRESP)), BYTE),
)
HEADERS = st.binary(min_size=1, max_size=252).map(lambda node: bytes((len(node) + 3, sn.ENCAPSULATED, 0)) + node)


@given(PACKETS)
def test_what_is_encoded_is_decoded(packet: sn.SnPacket) -> None:
    data = sn.encode(packet)
    assert sn.decode(data) == packet
    assert (data[0] == 1) == (len(data) > 255) and (data[0] == 1 or data[0] == len(data))
    assert sn.split(data) == (b"", data)


@given(PACKETS)
def test_the_long_form_of_a_length_is_understood_for_short_messages(packet: sn.SnPacket) -> None:
    data = sn.encode(packet)
    if data[0] != 1:
        data = b"\x01" + (len(data) + 2).to_bytes(2) + data[1:]
        assert sn.decode(data) == packet


@given(PACKETS, st.data())
def test_a_datagram_of_another_length_is_refused(packet: sn.SnPacket, data: st.DataObject) -> None:
    encoded = sn.encode(packet)
    shorter = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    for each in (shorter, encoded + b"\0"):
        with pytest.raises(sn.Malformed):
            sn.decode(each)


@given(st.binary(max_size=64), st.integers(0, 255))
def test_any_datagram_is_decoded_or_refused(data: bytes, kind: int) -> None:
    for each in (data, bytes((len(data) + 2, kind)) + data):
        packet: sn.SnPacket | None = None
        with suppress(sn.Malformed):
            packet = sn.decode(each)
        if packet is not None:
            again = sn.encode(packet)  # unused bits of the flags are lost, and nothing else
            assert sn.decode(again) == packet and len(again) == len(each)


@given(HEADERS, PACKETS)
def test_a_forwarders_header(header: bytes, packet: sn.SnPacket) -> None:
    data = sn.encode(packet)
    radius = header[:2] + b"\x02" + header[3:]
    assert sn.split(header + data) == sn.split(radius + data) == (header, data)
    with pytest.raises(sn.Malformed):
        sn.split(header + header + data)


@given(st.binary(max_size=32))
def test_any_datagram_is_split_or_refused(data: bytes) -> None:
    for each in (data, data[:1] + b"\xfe" + data[1:]):
        try:
            header, rest = sn.split(each)
        except sn.Malformed:
            continue
        assert len(header) + len(rest) == len(each) and rest == each[len(header) :]


@given(publishes().filter(lambda packet: packet.qos > 0))
def test_a_repetition_differs_in_dup_alone(packet: sn.SnPublish) -> None:
    again = sn.decode(sn.repeated(sn.encode(packet)))
    packet.dup = True
    assert again == packet


def test_examples_from_the_specification() -> None:
    assert sn.encode(sn.SnConnect("dev1", True, False, 30)) == b"\x0a\x04\x04\x01\x00\x1edev1"
    assert sn.encode(sn.SnPublish(1, sn.PREDEFINED, b"hi", -1)) == b"\x09\x0c\x61\x00\x01\x00\x00hi"
    assert sn.encode(sn.SnSubscribe(2, "a/#", sn.NORMAL, 1)) == b"\x08\x12\x20\x00\x02a/#"
    assert sn.encode(sn.SnSuback(1, 3, 2, sn.ACCEPTED)) == b"\x08\x13\x20\x00\x03\x00\x02\x00"
    assert sn.encode(sn.SnDisconnect(60)) == b"\x04\x18\x00\x3c"
    assert sn.encode(sn.SnPublish(1, 0, b"x" * 300)) == b"\x01\x01\x35\x0c\x00\x00\x01\x00\x00" + b"x" * 300
    with pytest.raises(ValueError, match="PUBLISH above 65,535 bytes"):
        sn.encode(sn.SnPublish(1, 0, b"x" * 65_530))
