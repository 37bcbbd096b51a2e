"""A node at level ``disk``, where the disk writes when the test says so and the power fails when it likes.

node = DurableFakeNode()
writer = node.connect("w")
writer.publish("t", b"x", 1, 1)     # nothing is acknowledged
node.store()                       # until the disk has written
node = node.crash()               # what was stored, in a new process
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Connack, Connect, Will
from taipan.broker.persistence.durability import Durability
from taipan.broker.persistence.log import records
from taipan.broker.persistence.log.batch import encode
from taipan.broker.persistence.log.errors import StoreError
from taipan.broker.store.recovery import read_batches, recover_in_steps
from taipan.broker.transport.connection_writer import Flusher

from .fake_node import FakeClient, FakeNode


class FakeJournal:
    """A write-ahead log whose writer is the test: ``write`` stores the batch that was cut."""

    def __init__(self, batches: list[list[bytes]], on_durable: Callable[[int], None], wake: Callable[[], None]) -> None:
        self.batches = batches  # on the disk
        self._on_durable = on_durable
        self._wake = wake
        self.durable_batch = len(batches)
        self.batch = self.durable_batch + 1
        self.max_pending = 1_000_000
        self.size_bytes = 0
        self.dropped = 0
        self.dropping = False
        self._writing: list[bytes] | None = None

    @property
    def idle(self) -> bool:
        return self._writing is None

    @property
    def pending(self) -> int:
        return len(self._writing or ())

    @property
    def pending_bytes(self) -> int:
        return sum(map(len, self._writing or ()))

    def append(self, records: list[bytes], access: object = None) -> None:
        assert self._writing is None
        self._writing = records
        self.batch += 1

    def yield_to_writer(self) -> None:
        """There is no thread."""

    def read(self, seq: int, offset: int, size: int) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if seq <= len(self.batches):
            future.set_result(encode(self.batches[seq - 1])[offset : offset + size])
        else:
            future.set_exception(StoreError("not there"))
        return future

    def drop_before(self, seq: int) -> None:
        self.dropped = seq

    def write(self) -> bool:
        """The disk stores the batch that was cut; whether there was one."""
        if self._writing is None:
            return False
        self.batches.append(self._writing)
        self._writing = None
        self.durable_batch = len(self.batches)
        self._on_durable(self.durable_batch)
        return True


class DurableFakeNode(FakeNode):
    """A ``FakeNode`` at level ``disk``. ``batches``: what the disk holds from before."""

    def __init__(
        self,
        zone: Mapping[str, Any] | None = None,
        batches: list[list[bytes]] | None = None,
        time: float | None = None,
        **config: Any,
    ) -> None:
        super().__init__(zone, **config)
        if time is not None:
            self.clock.time = time
        self._given = (zone, config)
        server = self.server
        server.flusher = self.flusher = Flusher(self.loop, self.broker.budget, server._end_of_iteration)  # type: ignore[arg-type]
        self.journal = FakeJournal(
            [] if batches is None else batches, lambda seq: self.durability.on_durable(seq), self.flusher.wake
        )
        self.durability = Durability(self.journal, self.flusher.wake, budget=self.broker.budget)  # type: ignore[arg-type]
        self.broker.attach_durability(self.durability)
        state = read_batches(enumerate(self.journal.batches, 1))
        for _ in recover_in_steps(
            state,
            self.broker,
            self.durability,
            lambda _: (self.zone, self.facts.limits),
            server.delayed.recover,
            server.refusal_of_will,
        ):
            pass
        self.run()

    def store(self) -> None:
        """The disk writes until nothing waits for it."""
        self.run()
        while self.journal.write():
            self.run()

    def crash(self, seconds: float = 0.0) -> "DurableFakeNode":
        """The power fails; what is on the disk starts again, ``seconds`` later."""
        zone, config = self._given
        return DurableFakeNode(
            zone, [list(batch) for batch in self.journal.batches], self.clock.time + seconds, **config
        )

    def trouble(self, text: str | None = "no space left for the store") -> None:
        """The disk takes nothing any more; None: it does again."""
        self.durability.commit.on_trouble(text)
        self.run()

    @property
    def written(self) -> list[records.Record]:
        """All records on the disk."""
        return [records.decode(each) for batch in self.journal.batches for each in batch]

    async def settle(self) -> None:
        """Let tasks go on and the fake loop turn, until both have nothing to do."""
        for _ in range(10):
            await asyncio.sleep(0)
            self.run()

    def send_connect(
        self, client_id: str, version: int = 5, expiry: int = 0xFFFFFFFF, clean: bool = False, will: Will | None = None
    ) -> FakeClient:
        """Sends a CONNECT for a session that outlives its connection; its answer stays unread."""
        client = self.open(version)
        properties = {c.SESSION_EXPIRY_INTERVAL: expiry} if version == 5 else {}
        client.send(Connect(version, client_id, clean, 0, None, None, will, properties, False))
        return client

    async def connect_durable(
        self, client_id: str, version: int = 5, expiry: int = 0xFFFFFFFF, **options: Any
    ) -> FakeClient:
        """The same client once it is let in, and with everything so far on the disk."""
        client = self.send_connect(client_id, version, expiry, **options)
        for _ in range(2):
            await self.settle()
            self.store()
        packets = client.reader.feed(client.transport.take())
        connack = packets.pop(0)[0]
        assert isinstance(connack, Connack) and connack.reason_code == 0, connack
        client.connack = connack
        client.reader.buffer[:0] = b"".join(raw for _, raw in packets)  # for the test to read
        return client
