"""Strings, binary data and variable byte integers."""

import pytest

from taipan.broker.mqtt.data_types import binary, read_binary, read_string, read_variable, string, utf8, variable
from taipan.broker.mqtt.errors import MalformedPacket

_BORDERS = (
    (0, "00"),
    (127, "7f"),
    (128, "8001"),
    (16383, "ff7f"),
    (16384, "808001"),
    (2097151, "ffff7f"),
    (2097152, "80808001"),
    (268435455, "ffffff7f"),
)


@pytest.mark.parametrize("value, text", _BORDERS)
def test_variable(value: int, text: str) -> None:
    """[MQTT-1.5.5-1]"""
    raw = bytes.fromhex(text)
    assert variable(value) == raw
    assert read_variable(b"\xff" + raw + b"\xff", 1, 1 + len(raw)) == (value, 1 + len(raw))


@pytest.mark.parametrize("text", ["", "80", "8080", "ffffff", "ffffffff", "ffffffff01", "8080808001"])
def test_variable_without_end(text: str) -> None:
    raw = bytes.fromhex(text)
    with pytest.raises(MalformedPacket):
        read_variable(raw, 0, len(raw))


@pytest.mark.parametrize("text", ["8000", "ff00", "808000", "80808000"])
def test_variable_not_the_shortest(text: str) -> None:
    """[MQTT-1.5.5-1]"""
    raw = bytes.fromhex(text)
    with pytest.raises(MalformedPacket):
        read_variable(raw, 0, len(raw))


@pytest.mark.parametrize("value", [-1, 268435456])
def test_variable_out_of_range(value: int) -> None:
    with pytest.raises(ValueError):
        variable(value)


@pytest.mark.parametrize("text", ["", "a", "ä", "\ufeffbom", "\U0010fffd", "\U0001f40d", "x" * 65535])
def test_string(text: str) -> None:
    """[MQTT-1.5.4-3]"""
    raw = string(text)
    assert read_string(raw, 0, len(raw), False) == (text, len(raw))


@pytest.mark.parametrize(
    "raw", [b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xc0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xff", b"\xc3", b"\x80"]
)
def test_not_utf8(raw: bytes) -> None:
    """[MQTT-1.5.4-1] [3.1.1 MQTT-1.5.3-1]"""
    with pytest.raises(MalformedPacket):
        utf8(raw, False)


@pytest.mark.parametrize("raw", [b"\0", b"a\0", b"\0a"])
def test_nul(raw: bytes) -> None:
    """[MQTT-1.5.4-2] [3.1.1 MQTT-1.5.3-2]"""
    with pytest.raises(MalformedPacket):
        utf8(raw, False)


def test_strict_is_about_control_and_non_characters_only() -> None:
    refused = {*range(1, 0x20), *range(0x7F, 0xA0), *range(0xFDD0, 0xFDF0)}
    for plane in range(17):
        refused |= {plane << 16 | 0xFFFE, plane << 16 | 0xFFFF}
    near = {near for code in refused for near in (code - 1, code + 1) if 0 < near <= 0x10FFFF}
    for code in refused | near | {0x20, 0x7E, 0xA0, 0xFEFF, 0xFFFD, 0x1F40D}:
        if 0xD800 <= code < 0xE000:
            continue
        raw = chr(code).encode()
        assert utf8(raw, False) == chr(code)
        if code in refused:
            with pytest.raises(MalformedPacket):
                utf8(raw, True)
        else:
            assert utf8(raw, True) == chr(code)


def test_fields_do_not_run_over() -> None:
    for raw in (b"", b"\0", b"\0\1", b"\0\5abcd", b"\xff\xffabc"):
        for behind in (b"", b"abcdefgh"):
            with pytest.raises(MalformedPacket):
                read_binary(raw + behind, 0, len(raw))
            with pytest.raises(MalformedPacket):
                read_string(raw + behind, 0, len(raw), False)
    assert read_binary(b"x\0\2abcd", 1, 5) == (b"ab", 5)


def test_longest() -> None:
    assert len(binary(b"x" * 65535)) == 65537
    with pytest.raises(ValueError):
        binary(b"x" * 65536)
    with pytest.raises(ValueError):
        string("\ud800")
