"""Plain frames of one read: what is taken, what is left for the library, and the header of what is sent."""

import itertools
import random
import struct

import pytest
from websockets.frames import Frame, Opcode

from taipan.broker.transport.websocket_frames import MAX_HEADER, frame_size, header, take_plain
from tests.broker.transport.test_websocket import BINARY, CONT, PING, frame

MASKS = (b"\x00\x00\x00\x00", b"\x01\x02\x03\x04", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x80\x00\x00\x7f")


def masked(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    head = bytes([0x82, 0x80 | size]) if size < 126 else struct.pack("!BBH", 0x82, 0xFE, size)
    return head + mask + bytes(byte ^ key for byte, key in zip(payload, itertools.cycle(mask), strict=False))


def test_every_length_at_every_place_with_masks_of_every_sign() -> None:
    dice = random.Random(5)
    for size in (*range(70), 124, 125, 126, 127, 128, 1000, 65_534, 65_535):
        for mask in MASKS:
            payload = dice.randbytes(size)
            wire = masked(payload, mask)
            for before in range(9):
                raw = b"." * before + wire
                assert take_plain(raw, before, 100_000, 10) == (payload, len(raw), 1)
                assert take_plain(raw + b"more", before, 100_000, 10) == (payload, len(raw), 1)


def test_all_frames_of_a_read_together() -> None:
    pieces = [b"", b"a", b"b" * 126, b"", b"c" * 9]
    raw = b"".join(frame(BINARY, piece) for piece in pieces)
    assert take_plain(raw, 0, 1000, 1000) == (b"".join(pieces), len(raw), 5)
    assert take_plain(raw, 0, 1000, 2) == (b"a", 6 + 7, 2)
    assert take_plain(raw, 6, 1000, 1) == (b"a", 6 + 7, 1)
    assert take_plain(raw, len(raw), 1000, 1) == (b"", len(raw), 0)
    assert take_plain(raw, 0, 1000, 0) == (b"", 0, 0)


def test_lengths_in_more_bytes_than_they_need() -> None:
    raw = struct.pack("!BBH", 0x82, 0xFE, 3) + b"\x01\x02\x03\x04" + b"bca"
    assert take_plain(raw, 0, 1000, 10) == (bytes((0x62 ^ 1, 0x63 ^ 2, 0x61 ^ 3)), len(raw), 1)


@pytest.mark.parametrize(
    "left",
    [
        b"",
        b"\x82",
        frame(BINARY, b"cut")[:-1],
        frame(BINARY, b"c" * 200)[:3],
        frame(BINARY, b"c" * 200)[:-1],
        frame(BINARY, b"not masked", masked=False),
        frame(BINARY, b"fragment", fin=False),
        frame(CONT, b"fragment"),
        frame(BINARY, b"compressed", rsv1=True),
        frame(PING, b"ping"),
        frame(BINARY, b"l" * 301),
        frame(BINARY, b"l" * 70_000),
        struct.pack("!BBQ", 0x82, 0xFF, 5) + b"\0\0\0\0hello",
        struct.pack("!BBQ", 0x82, 0xFF, 2**63),
    ],
)
def test_what_is_left_to_the_library(left: bytes) -> None:
    before = frame(BINARY, b"before")
    assert take_plain(before + left, 0, 300, 10) == (b"before", len(before), 1)


def test_the_limit_is_on_each_frame() -> None:
    raw = frame(BINARY, b"l" * 300) * 3
    assert take_plain(raw, 0, 300, 10) == (b"l" * 900, len(raw), 3)
    assert take_plain(raw, 0, 299, 10) == (b"", 0, 0)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 70_000])
def test_the_header_is_that_of_the_library(size: int) -> None:
    data = b"x" * size
    assert header(size) + data == Frame(Opcode.BINARY, data).serialize(mask=False)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536])
def test_the_size_of_a_frame_is_known_with_its_length(size: int) -> None:
    raw = frame(BINARY, b"x" * size)
    known = 2 if size < 126 else 4 if size < 65_536 else 10
    for length in range(MAX_HEADER + 1):
        assert frame_size(raw[:length]) == (len(raw) if length >= known else 0)
    assert frame_size(struct.pack("!BBQ", 0x82, 0xFF, 2**64 - 1)) == 14 + 2**64 - 1
