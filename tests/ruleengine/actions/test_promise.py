"""What a publisher's acknowledgement promises: the rows that its message has put into buffers are on disk."""

from __future__ import annotations

from random import Random

import pytest

from taipan.broker.mqtt.constants import PUBACK, PUBREC
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Ack
from taipan.broker.persistence.log import records
from taipan.broker.persistence.tables import Tables
from taipan.ruleengine.delivery.buffer import Buffer
from taipan.ruleengine.delivery.buffer_store import TABLE, BufferStore
from taipan.ruleengine.delivery.buffered_row import BufferedRow, encode_row
from tests.ruleengine.delivery.test_buffer import Sink
from tests.support.durable_fake_node import DurableFakeNode
from tests.support.fake_engine import QUICK


@pytest.mark.asyncio
@pytest.mark.parametrize("qos, acknowledgement", [(1, PUBACK), (2, PUBREC)])
async def test_no_acknowledgement_goes_out_before_the_row_is_on_disk(qos: int, acknowledgement: int) -> None:
    node = DurableFakeNode()
    tables = Tables()
    tables.commit = node.durability.commit
    buffer = Buffer("resource:1", BufferStore(tables), QUICK, Sink(), 1, Random(1))

    def put(message: Message) -> Message:
        buffer.append(BufferedRow("a_1", "w", "", 1, 1.0, message.payload, encode_row({"payload": message.payload})))
        return message

    node.server.hooks.message_publish.add(put)
    writer = await node.connect_durable("w")
    writer.publish("nobody/listens", b"x", qos, 5)
    node.run()
    assert [each for each in writer.received() if isinstance(each, Ack)] == []
    assert not _rows(node)
    node.store()
    (ack,) = [each for each in writer.received() if isinstance(each, Ack)]
    assert (ack.type, ack.packet_id) == (acknowledgement, 5)
    ((key, value),) = _rows(node)
    assert key.startswith("resource:1/") and b"x" in value


def _rows(node: DurableFakeNode) -> list[tuple[str, bytes]]:
    return [
        (each.key, bytes(each.value))
        for each in node.written
        if isinstance(each, records.RowStored) and each.table == TABLE
    ]
