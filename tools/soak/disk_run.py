"""A scripted run of a node on a fake disk: many clients on one thread, with every step determined by a seed."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from tests.support.fake_disk import MemoryDisk

from .disk_client import ScriptedClient
from .disk_node import WILL_DELAY, DiskFakeNode, User
from .disk_promises import DiskPromises, Fact

AREAS = 4
RETAINED = 4


class Run:
    """The script. ``facts`` are keyed by the number of preceding disk operations; ``wrong``: violations that clients
    noticed."""

    def __init__(self, directory: Path, seed: int, queue_memory: int = 20_000) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk(f"run-{seed}-{id(self)}")
        self.facts: list[tuple[int, Fact]] = []
        self.promises = DiskPromises()
        self.wrong: list[str] = []
        self.refused = 0
        self.steps = 0
        self.before_writing: Callable[[], None] = lambda: None
        self._names = 0
        self._pending: list[tuple[float, str]] = []  # wills of clients that vanished: due, name
        self.node = DiskFakeNode(directory, self.disk, queue_memory)
        self.publishers = [
            ScriptedClient(self, "p5", 5, True),
            ScriptedClient(self, "p4", 4, True),
            ScriptedClient(self, "c5", 5, False),
        ]
        self.subscribers = [
            ScriptedClient(self, "all5", 5, True),
            ScriptedClient(self, "all4", 4, True),
            ScriptedClient(self, "slow5", 5, True, 3),
            ScriptedClient(self, "change5", 5, True),
            ScriptedClient(self, "change4", 4, True),
            ScriptedClient(self, "clean5", 5, False),
        ]
        self.will_clients: list[ScriptedClient] = []
        self.node.writer.on_access = lambda digests: self.record("users_stored", digests)

    def record(self, name: str, *arguments: object) -> None:
        fact = (name, arguments)
        self.facts.append((len(self.disk.events), fact))
        self.promises.record(fact)

    def new_name(self, client_id: str) -> str:
        self._names += 1
        return f"{client_id}:{self._names}"

    @property
    def clients(self) -> list[ScriptedClient]:
        return [*self.publishers, *self.subscribers, *self.will_clients]

    async def play(self, go_on: Callable[["Run"], bool]) -> None:
        """Run steps as long as ``go_on`` returns true and no client reports a violation."""
        while go_on(self) and not self.wrong:
            self.steps += 1
            self._step()
            await self.node.settle()
            if self.random.random() < 0.6:
                self.before_writing()
                self.node.writer.step()
                await self.node.settle()
            for client in self.clients:
                client.take()

    def _step(self) -> None:
        random = self.random
        what = random.random()
        if what < 0.45:
            client = random.choice(self.publishers)
            if not client.online:
                self._come(client)
                return
            for _ in range(random.randint(1, 6)):
                if random.random() < 0.12 and client is not self.publishers[2]:
                    # One publisher and one QoS for each topic.
                    own = random.randrange(RETAINED) // 2 * 2 + self.publishers.index(client)
                    client.retain(f"r/{own}", 1 + own // 2, random.random() < 0.3)
                else:
                    size = random.choice((0, 0, 100, 3000))
                    client.publish(f"t/{random.randrange(AREAS)}/x", random.choice((1, 2)), size)
        elif what < 0.75:
            for client in self.clients:
                if random.random() < 0.6:
                    client.answer(random.randint(1, 12))
        elif what < 0.85:
            client = random.choice(self.subscribers)
            if not client.online:
                self._come(client)
            elif client.client_id.startswith("all") or client.client_id == "slow5":
                for area in range(AREAS):
                    if client.durable and self.promises.side(client.client_id).filters.get(f"t/{area}/#", -2) < 0:
                        client.subscribe(f"t/{area}/#", 2)
            elif random.random() < 0.5:
                client.subscribe(f"t/{random.randrange(AREAS)}/#", random.choice((1, 2)))
            else:
                client.unsubscribe(f"t/{random.randrange(AREAS)}/#")
        elif what < 0.92:
            self._shake(random.choice([*self.publishers, *self.subscribers]))
        elif what < 0.94:
            self._user()
        elif what < 0.965:
            self._will()
        else:
            self._pass_time(random.choice((1, 1, 3)))

    def _come(self, client: ScriptedClient) -> None:
        if client.peer is None:
            clean = client.client_id.startswith("change") and self.random.random() < 0.1 and client.version == 5
            client.connect(clean)

    def _shake(self, client: ScriptedClient) -> None:
        what = self.random.random()
        if not client.online:
            self._come(client)
        elif what < 0.3:
            client.vanish()
        elif what < 0.55:
            client.leave()
        elif what < 0.75:
            if client.durable:
                client.take()
                client._gone()  # nothing more is read from a connection that is taken over
                client.connect(False)
        elif client.client_id == "change5":
            client.leave(end=True)

    def _user(self) -> None:
        """Create, change or delete an access record."""
        name = f"u{self.random.randrange(6)}"
        if self.random.random() < 0.3:
            self.node.users.remove(name)
        else:
            self.node.users.put(name, User(name, self.steps))
        self.record("users_changed", self.node.durability.tables.access())

    def _will(self) -> None:
        """Connect a client with a will, publish so that the will is known to be stored, or disconnect the client."""
        random = self.random
        for client in self.will_clients:
            if not client.online or random.random() < 0.4:
                continue
            if client.will not in self.promises.armed:
                client.publish("t/0/x", 2, 0)
            elif random.random() < 0.4:
                self.record("goodbye", client.will)
                client.leave()
                self.will_clients.remove(client)
            else:
                self._vanish_with_will(client)
            return
        if len(self.will_clients) < 3:
            self._names += 1
            client = ScriptedClient(self, f"w{self._names}", 5, True)
            delayed = random.random() < 0.5
            qos = random.choice((1, 2))
            client.will = f"will-{'late' if delayed else 'now'}:{self._names}"
            topic = f"t/{random.randrange(AREAS)}/w"
            self.record("will", client.will, client.client_id, topic, qos)
            properties = {c.WILL_DELAY_INTERVAL: WILL_DELAY} if delayed else {}
            self.will_clients.append(client)
            client.connect(False, Will(topic, client.will.encode(), qos, False, properties))

    def _vanish_with_will(self, client: ScriptedClient) -> None:
        client.take()
        if client.will.startswith("will-late"):
            self._pending.append((self.node.clock.time + WILL_DELAY, client.will))
        else:
            self.record("will_due", client.will)
        self.will_clients.remove(client)
        client.vanish()

    def _pass_time(self, seconds: int) -> None:
        now = self.node.clock.time + seconds
        for due, name in list(self._pending):
            if due <= now:
                self._pending.remove((due, name))
                self.record("will_due", name)
        self.node.pass_time(seconds)
        self.node.housekeep()
