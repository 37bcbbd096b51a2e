import sys
from random import Random
from types import FrameType
from typing import Any, Protocol

import pytest

from taipan.broker.mqtt import message_ids
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.message_ids import MessageIdSource


class TraceFunction(Protocol):
    def __call__(self, frame: FrameType, event: str, argument: Any, /) -> "TraceFunction | None": ...


def test_ids_are_the_start_of_the_node_and_a_number() -> None:
    ids = MessageIdSource(Random(1))
    prefix = f"{Random(1).getrandbits(64):016X}"
    messages = [Message("t") for _ in range(10_000)]
    assert not any(message.identified or message.id for message in messages)
    for message in messages:
        ids.give(message)
    assert all(message.identified for message in messages)
    assert [message.id for message in messages] == [f"{prefix}{number:016X}" for number in range(1, 10_001)]
    messages[4095].id = "of somebody else"
    assert messages[4095].id == "of somebody else" and messages[4095].identified
    assert messages[0].id == f"{prefix}{1:016X}"


@pytest.mark.interpreted  # compiled code has no lines to stop at, and is not interrupted between them
def test_what_another_thread_does_between_two_lines_changes_no_id() -> None:
    interrupted = 0

    def at_each_line(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        nonlocal interrupted
        if frame.f_code.co_filename != message_ids.__file__:
            return None
        if event == "line":
            sys.settrace(None)
            interrupted += 1
            assert message_ids.id_of("B" * 16, 3 << 12) == "B" * 16 + "0000000000003000"
            sys.settrace(at_each_line)
        return at_each_line

    before = sys.gettrace()
    sys.settrace(at_each_line)
    try:
        found = [message_ids.id_of("A" * 16, number) for number in (1, 2, 0x1001)]
    finally:
        sys.settrace(before)
    assert found == ["A" * 16 + end for end in ("0000000000000001", "0000000000000002", "0000000000001001")]
    assert interrupted > 10
