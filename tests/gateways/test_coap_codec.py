"""The codec of CoAP: what is encoded is decoded, aiocoap agrees, and no datagram does more than be refused."""

import aiocoap
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.gateways.coap import codec

CODES = st.integers(1, 31) | st.integers(0x40, 0xBF)
OPTIONS = st.lists(st.tuples(st.integers(0, 0xFFFF), st.binary(max_size=300)), max_size=6).map(
    lambda options: sorted(options, key=lambda each: each[0])
)
PACKETS = st.builds(
    codec.Packet,
    st.integers(0, 3),
    CODES,
    st.integers(0, 0xFFFF),
    st.binary(max_size=8),
    OPTIONS,
    st.binary(max_size=300),
)
REQUEST = st.sampled_from(
    (codec.URI_HOST, codec.ETAG, codec.URI_PATH, codec.URI_QUERY, codec.CONTENT_FORMAT, codec.MAX_AGE, codec.ACCEPT)
)


@given(PACKETS)
def test_what_is_encoded_is_decoded(packet: codec.Packet) -> None:
    data = codec.encode(packet.type, packet.code, packet.mid, packet.token, packet.options, packet.payload)
    assert codec.decode(data) == packet


@given(PACKETS)
def test_aiocoap_reads_the_same(packet: codec.Packet) -> None:
    packet.options = [(number, value) for number, value in packet.options if number > 2053]  # opaque to it
    data = codec.encode(packet.type, packet.code, packet.mid, packet.token, packet.options, packet.payload)
    read = aiocoap.Message.decode(data)
    found = [(int(each.number), each.encode()) for each in read.opt.option_list()]
    assert (int(read.mtype), int(read.code), read.mid, read.token) == (
        packet.type, packet.code, packet.mid, packet.token,
    )  # fmt: skip
    assert (found, read.payload) == (packet.options, packet.payload)


@given(st.binary(max_size=60))
def test_any_datagram(data: bytes) -> None:
    try:
        packet = codec.decode(data)
    except codec.MalformedCoap:
        return
    again = codec.encode(packet.type, packet.code, packet.mid, packet.token, packet.options, packet.payload)
    assert codec.decode(again) == packet and len(again) <= len(data)


@given(st.lists(st.tuples(REQUEST, st.binary(max_size=20)), max_size=8))
def test_any_options(options: codec.Options) -> None:
    try:
        found = codec.read_options(options)
    except codec.BadOption:
        return
    assert len(found.path) == sum(number == codec.URI_PATH for number, _ in options)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x40\x01\x00", b"\x80\x01\x00\x01", b"\x49\x01\x00\x01", b"\x41\x00\x00\x01t", b"\x40\x00\x00\x01x",
        b"\x40\x21\x00\x01", b"\x40\xc1\x00\x01", b"\x40\xe1\x00\x01", b"\x42\x01\x00\x01t", b"\x40\x01\x00\x01\xff",
        b"\x40\x01\x00\x01\xb4abc", b"\x40\x01\x00\x01\xf0", b"\x40\x01\x00\x01\x0f", b"\x40\x01\x00\x01\xd0",
        b"\x40\x01\x00\x01\xe0\xff\xff\xe0\xff\xff",
    ],
)  # fmt: skip
def test_malformed_messages(data: bytes) -> None:
    with pytest.raises(codec.MalformedCoap) as raised:
        codec.decode(data)
    confirmable = len(data) >= 4 and data[0] >> 4 == 4
    assert raised.value.reset == (1 if confirmable else -1)


def test_options_that_must_be_understood() -> None:
    for number, value in (
        (codec.URI_PATH, b"\xff"), (codec.URI_PATH, b"x" * 256), (codec.ACCEPT, b"abc"), (1, b"x"), (5, b""), (9, b""),
    ):  # fmt: skip
        with pytest.raises(codec.BadOption):
            codec.read_options([(number, value)])
    with pytest.raises(codec.BadOption):
        codec.read_options([(codec.ACCEPT, b"\x2a"), (codec.ACCEPT, b"\x2a")])
    found = codec.read_options(
        [(codec.OBSERVE, b"abcd"), (codec.MAX_AGE, b"\x01"), (codec.MAX_AGE, b"\x02"), (60, b"")]
    )
    assert found.observe is None and found.max_age == 1  # elective ones are ignored
