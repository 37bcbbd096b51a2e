"""The table of properties against what the standard's own table says."""

import itertools

import pytest

from taipan.broker.mqtt import constants
from taipan.broker.mqtt.errors import MalformedPacket, ProtocolError
from taipan.broker.mqtt.packets import NO_PROPERTIES
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
    of_publish,
    read,
    write,
)
from tests.support.table import each_row

_SAMPLE = {BYTE: 1, TWO_BYTE: 2, FOUR_BYTE: 3, VARIABLE: 4, BINARY: b"\xff", STRING: "s", STRING_PAIR: [("k", "v")]}

# Table 2-4 of the standard, by hand: identifier -> type and packets. W is the will, k the PUBACK family.
_STANDARD = {
    1: (BYTE, {3, WILL}),
    2: (FOUR_BYTE, {3, WILL}),
    3: (STRING, {3, WILL}),
    8: (STRING, {3, WILL}),
    9: (BINARY, {3, WILL}),
    11: (VARIABLE, {3, 8}),
    17: (FOUR_BYTE, {1, 2, 14}),
    18: (STRING, {2}),
    19: (TWO_BYTE, {2}),
    21: (STRING, {1, 2, 15}),
    22: (BINARY, {1, 2, 15}),
    23: (BYTE, {1}),
    24: (FOUR_BYTE, {WILL}),
    25: (BYTE, {1}),
    26: (STRING, {2}),
    28: (STRING, {2, 14}),
    31: (STRING, {2, 4, 5, 6, 7, 9, 11, 14, 15}),
    33: (TWO_BYTE, {1, 2}),
    34: (TWO_BYTE, {1, 2}),
    35: (TWO_BYTE, {3}),
    36: (BYTE, {2}),
    37: (BYTE, {2}),
    38: (STRING_PAIR, {1, 2, 3, WILL, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15}),
    39: (FOUR_BYTE, {1, 2}),
    40: (BYTE, {2}),
    41: (BYTE, {2}),
    42: (BYTE, {2}),
}
_PACKETS = [kind for kind in range(16) if kind not in (constants.PINGREQ, constants.PINGRESP)]


def test_table_is_that_of_the_standard() -> None:
    assert set(TABLE) == set(_STANDARD)
    for identifier, (kind, packets) in _STANDARD.items():
        row = TABLE[identifier]
        assert row.identifier == identifier
        assert row.type == kind
        assert {packet for packet in range(16) if row.packets >> packet & 1} == packets


def test_names() -> None:
    assert TABLE[17].name == "Session-Expiry-Interval"
    assert len({row.name for row in TABLE.values()}) == len(TABLE)
    for identifier, row in TABLE.items():
        name = row.name
        constant = "MAXIMUM_QOS" if name == "Maximum-QoS" else name.replace("-", "_").upper()
        assert getattr(constants, constant) == identifier


@each_row(itertools.product(TABLE, _PACKETS))
def test_each_property_in_each_packet(row: tuple[int, int]) -> None:
    identifier, packet = row
    kind, packets = _STANDARD[identifier]
    value = _SAMPLE[kind]
    data = write({identifier: value})
    if packet in packets:
        expected = [value] if identifier == 11 and packet == constants.PUBLISH else value
        assert read(data, 0, len(data), packet, False) == ({identifier: expected}, len(data))
    else:
        wanted = ProtocolError if packet in (3, 4, 5, 6, 7, 14) else MalformedPacket
        with pytest.raises(wanted):
            read(data, 0, len(data), packet, False)


@pytest.mark.parametrize("identifier", TABLE)
def test_each_property_twice_and_cut(identifier: int) -> None:
    kind, packets = _STANDARD[identifier]
    packet = min(packets - {WILL} or packets)
    one = write({identifier: _SAMPLE[kind]})[1:]
    if identifier != constants.USER_PROPERTY and (identifier, packet) != (11, constants.PUBLISH):
        data = bytes((len(one) * 2,)) + one * 2
        with pytest.raises(ProtocolError):
            read(data, 0, len(data), packet, False)
    for size in range(1, len(one)):
        # The value is cut by the property length, with more of the packet behind it.
        data = bytes((size,)) + one + b"\0" * 20
        with pytest.raises(MalformedPacket):
            read(data, 0, len(data), packet, False)


def test_bounds_of_numbers() -> None:
    for row in TABLE.values():
        if row.type in (BYTE, TWO_BYTE, FOUR_BYTE, VARIABLE):
            packet = min(_STANDARD[row.identifier][1] - {WILL} or {WILL})
            most = {BYTE: 255, TWO_BYTE: 65535, FOUR_BYTE: 0xFFFFFFFF, VARIABLE: 268435455}[row.type]
            for value in (0, 1, 2, most):
                data = write({row.identifier: value})
                if row.least <= value <= row.greatest:
                    properties, _ = read(data, 0, len(data), packet, False)
                    assert row.identifier in properties
                else:
                    with pytest.raises(ProtocolError) as caught:
                        read(data, 0, len(data), packet, False)
                    assert caught.value.reason_code == (0x94 if row.identifier == constants.TOPIC_ALIAS else 0x82)


def test_none_are_the_shared_empty_dict() -> None:
    # [MQTT-2.2.2-1]
    assert write({}) == b"\0"
    properties, at = read(b"\0\xff", 0, 2, constants.PUBLISH, False)
    assert properties is NO_PROPERTIES
    assert at == 1


def test_order_is_kept() -> None:
    data = b"\x0b\x03\0\1c\x26\0\1k\0\1v"
    properties, _ = read(data, 0, len(data), constants.PUBLISH, False)
    assert list(properties) == [3, 38]
    assert write(properties) == data


def test_unknown_cannot_be_written() -> None:
    with pytest.raises(KeyError):
        write({4: 1})


def test_properties_of_a_publish_that_came_in_no_packet_are_as_if_they_had() -> None:
    given = {1: 1, 2: 0xFFFF_FFFF, 3: "text", 8: "a/b", 9: b"\xff", 35: 7, 38: [["k", "v"], ["k", "w"]]}
    assert of_publish(given) == {**given, 38: [("k", "v"), ("k", "w")]}
    assert of_publish({}) == {}


@pytest.mark.parametrize(
    "given",
    [
        {2: "x"},
        {2: -5},
        {2: 1 << 40},
        {2: None},
        {2: 1.5},
        {2: [1, 2]},
        {38: 5},
        {38: [5]},
        {38: [[1, 2]]},
        {38: [["a", "b", "c"]]},
        {38: [["a", "b\0"]]},
        {38: [["a", "b" * 65_536]]},
        {3: 5},
        {3: "a\0"},
        {3: b"a"},
        {3: "\ud800"},
        {1: 7},
        {8: "a/#"},
        {8: ""},
        {9: "x"},
        {9: bytes(65_536)},
        {11: [1]},
        {11: 1},
        {35: 0},
        {24: 5},
        {9999: 5},
        {-1: 5},
    ],
    ids=str,
)
def test_what_no_client_can_have_sent_in_a_publish_are_no_properties_of_one(given: dict[int, object]) -> None:
    """[MQTT-3.3.4-6] [MQTT-3.3.2-14]"""
    assert of_publish(given) is None
