"""The packet table against a running node: every bad row gets the right answer, every good one none that is wrong.

A row stands for one Control Packet of a client; those of CONNECT come first on a connection, all others after CONNACK.
"""

from typing import Any

import pytest

from taipan.broker.mqtt.errors import PacketTooLarge
from taipan.broker.mqtt.packets import Connack, Disconnect
from tests.packets import CLIENT, Bad, Row, rows
from tests.support.clients import Clients, StartClients, tcp
from tests.support.peer import Closed, Peer
from tests.support.wire import WireError

pytestmark = [pytest.mark.asyncio(loop_scope="module"), tcp]

BATCH = 40


def batches(bad: bool, strict: bool = False) -> list[Any]:
    """Rows by version, some at a time: a test each would be more test than packet."""
    made = []
    for version in (3, 4, 5):
        chosen = [
            row
            for row in rows(CLIENT)
            if row.version == version and isinstance(row.expect, Bad) == bad and (not bad or row.strict == strict)
        ]
        for start in range(0, len(chosen), BATCH):
            made.append(pytest.param(version, chosen[start : start + BATCH], id=f"v{version}-{start}"))
    return made


async def send(clients: Clients, row: Row) -> Peer:
    # A level that nobody speaks is answered in the form of 3.1.1 [MQTT-3.1.2-2].
    peer = clients.peer(4 if isinstance(row.expect, Bad) and row.expect.answer else row.version)
    await peer.open()
    if not row.fresh:
        await peer.connect(clients.name())
    await peer.send(row.data)
    return peer


async def check_refused(peer: Peer, row: Row) -> None:
    """[MQTT-4.13.1-1] [MQTT-3.1.4-1] [MQTT-3.14.0-1] [3.1.1 MQTT-4.8.0-1] [3.1.1 MQTT-3.1.4-1]"""
    bad = row.expect
    if row.fresh:
        if bad.answer:
            await peer.expect(Connack)
            assert peer.raw == bad.answer
            await peer.expect_closed()
            return
        try:
            packet = await peer.receive()
        except Closed as closed:
            if closed.reset:
                raise
            return
        assert isinstance(packet, Connack), f"{packet!r} before CONNACK"
        assert packet.reason_code, "accepted"
        if row.version == 5:
            assert packet.reason_code == bad.code
        await peer.expect_closed()
        return
    await peer.expect_disconnect(bad.code)


@pytest.mark.parametrize("version, batch", batches(bad=True))
async def test_bad_rows(clients: Clients, version: int, batch: list[Row]) -> None:
    """Closed, 5.0 with the Reason Code of the row; other clients notice nothing [MQTT-4.13.1-1]
    [3.1.1 MQTT-4.8.0-1]."""
    await _check_bad(clients, batch)


async def _check_bad(clients: Clients, batch: list[Row]) -> None:
    bystander = await clients.connect()
    wrong = []
    for row in batch:
        if row.expect.error is PacketTooLarge:
            continue  # the table's limit is not this node's
        peer = await send(clients, row)
        try:
            await check_refused(peer, row)
        except (AssertionError, Closed, TimeoutError) as error:
            wrong.append(f"{row.id} {row.data[:40]!r} {row.tag}: {error!r}")
        peer.abort()
    await bystander.nothing()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("version, batch", batches(bad=False))
async def test_good_rows(clients: Clients, version: int, batch: list[Row]) -> None:
    """Not malformed: what comes back is well formed and never 0x81."""
    bystander = await clients.connect()
    wrong = []
    for row in batch:
        peer = await send(clients, row)
        try:
            await check_taken(peer, row)
        except (AssertionError, Closed, WireError) as error:
            wrong.append(f"{row.id} {row.data[:40]!r} {row.tag}: {error!r}")
        peer.abort()
    await bystander.nothing()
    assert not wrong, "\n".join(wrong)


async def check_taken(peer: Peer, row: Row) -> None:
    """Reads until the node falls silent or closes; a refusal for what the packet asks is no fault of its form."""
    await peer.send(b"\xc0\x00")
    try:
        while True:
            packet = await peer.receive()
            if isinstance(packet, Disconnect | Connack):
                assert packet.reason_code != 0x81, packet
            if peer.raw == b"\xd0\x00":
                return
    except Closed as closed:
        if closed.reset:
            raise
    except TimeoutError:
        raise AssertionError("neither answer nor end") from None


@pytest.mark.parametrize("version, batch", batches(bad=True, strict=True))
async def test_strict_rows(clients_of: StartClients, version: int, batch: list[Row]) -> None:
    """Rows that are bad only where strings are checked strictly."""
    await _check_bad(await clients_of(zone={"strict_strings": True}), batch)
