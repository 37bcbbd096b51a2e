"""A scripted run of a node on a fake disk: many clients, one thread, every step by a seed."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from tests.support.fake_disk import MemoryDisk

from .disk_account import Account, Fact
from .disk_house import WILL_DELAY, DiskFakeNode, User
from .disk_player import Player

AREAS = 4
RETAINED = 4


class Run:
    """The script. ``facts`` go by the number of disk operations before them; ``wrong``: what clients complained of."""

    def __init__(self, directory: Path, seed: int, queue_memory: int = 20_000) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk(f"run-{seed}-{id(self)}")
        self.facts: list[tuple[int, Fact]] = []
        self.account = Account()
        self.wrong: list[str] = []
        self.refused = 0
        self.steps = 0
        self.before_writing: Callable[[], None] = lambda: None
        self._names = 0
        self._pending: list[tuple[float, str]] = []  # wills of clients that vanished: due, name
        self.node = DiskFakeNode(directory, self.disk, queue_memory)
        self.publishers = [
            Player(self, "p5", 5, True), Player(self, "p4", 4, True), Player(self, "c5", 5, False),
        ]  # fmt: skip
        self.takers = [
            Player(self, "all5", 5, True), Player(self, "all4", 4, True), Player(self, "slow5", 5, True, 3),
            Player(self, "change5", 5, True), Player(self, "change4", 4, True), Player(self, "clean5", 5, False),
        ]  # fmt: skip
        self.willers: list[Player] = []
        self.node.writer.on_access = lambda digests: self.tell("users_stored", digests)

    def tell(self, name: str, *arguments: object) -> None:
        fact = (name, arguments)
        self.facts.append((len(self.disk.events), fact))
        self.account.tell(fact)

    def new_name(self, client_id: str) -> str:
        self._names += 1
        return f"{client_id}:{self._names}"

    @property
    def players(self) -> list[Player]:
        return [*self.publishers, *self.takers, *self.willers]

    async def play(self, go_on: Callable[["Run"], bool]) -> None:
        """Steps as long as ``go_on`` says so and nobody complains."""
        while go_on(self) and not self.wrong:
            self.steps += 1
            self._step()
            await self.node.settle()
            if self.random.random() < 0.6:
                self.before_writing()
                self.node.writer.step()
                await self.node.settle()
            for player in self.players:
                player.take()

    def _step(self) -> None:
        random = self.random
        what = random.random()
        if what < 0.45:
            player = random.choice(self.publishers)
            if not player.online:
                self._come(player)
                return
            for _ in range(random.randint(1, 6)):
                if random.random() < 0.12 and player is not self.publishers[2]:
                    # One publisher and one QoS for each topic.
                    own = random.randrange(RETAINED) // 2 * 2 + self.publishers.index(player)
                    player.retain(f"r/{own}", 1 + own // 2, random.random() < 0.3)
                else:
                    size = random.choice((0, 0, 100, 3000))
                    player.publish(f"t/{random.randrange(AREAS)}/x", random.choice((1, 2)), size)
        elif what < 0.75:
            for player in self.players:
                if random.random() < 0.6:
                    player.answer(random.randint(1, 12))
        elif what < 0.85:
            player = random.choice(self.takers)
            if not player.online:
                self._come(player)
            elif player.client_id.startswith("all") or player.client_id == "slow5":
                for area in range(AREAS):
                    if player.durable and self.account.side(player.client_id).filters.get(f"t/{area}/#", -2) < 0:
                        player.subscribe(f"t/{area}/#", 2)
            elif random.random() < 0.5:
                player.subscribe(f"t/{random.randrange(AREAS)}/#", random.choice((1, 2)))
            else:
                player.unsubscribe(f"t/{random.randrange(AREAS)}/#")
        elif what < 0.92:
            self._shake(random.choice([*self.publishers, *self.takers]))
        elif what < 0.94:
            self._user()
        elif what < 0.965:
            self._will()
        else:
            self._pass_time(random.choice((1, 1, 3)))

    def _come(self, player: Player) -> None:
        if player.client is None:
            clean = player.client_id.startswith("change") and self.random.random() < 0.1 and player.version == 5
            player.connect(clean)

    def _shake(self, player: Player) -> None:
        what = self.random.random()
        if not player.online:
            self._come(player)
        elif what < 0.3:
            player.vanish()
        elif what < 0.55:
            player.leave()
        elif what < 0.75:
            if player.durable:
                player.take()
                player._gone()  # of the connection that is taken over nothing is read any more
                player.connect(False)
        elif player.client_id == "change5":
            player.leave(end=True)

    def _user(self) -> None:
        """A row that decides who may comes, changes or goes."""
        name = f"u{self.random.randrange(6)}"
        if self.random.random() < 0.3:
            self.node.users.remove(name)
        else:
            self.node.users.put(name, User(name, self.steps))
        self.tell("users_changed", self.node.durability.tables.access())

    def _will(self) -> None:
        """A client with a will comes, or publishes so that the will is known to be stored, or goes."""
        random = self.random
        for player in self.willers:
            if not player.online or random.random() < 0.4:
                continue
            if player.will not in self.account.armed:
                player.publish("t/0/x", 2, 0)
            elif random.random() < 0.4:
                self.tell("goodbye", player.will)
                player.leave()
                self.willers.remove(player)
            else:
                self._vanish_with_will(player)
            return
        if len(self.willers) < 3:
            self._names += 1
            player = Player(self, f"w{self._names}", 5, True)
            delayed = random.random() < 0.5
            qos = random.choice((1, 2))
            player.will = f"will-{'late' if delayed else 'now'}:{self._names}"
            topic = f"t/{random.randrange(AREAS)}/w"
            self.tell("will", player.will, player.client_id, topic, qos)
            properties = {c.WILL_DELAY_INTERVAL: WILL_DELAY} if delayed else {}
            self.willers.append(player)
            player.connect(False, Will(topic, player.will.encode(), qos, False, properties))

    def _vanish_with_will(self, player: Player) -> None:
        player.take()
        if player.will.startswith("will-late"):
            self._pending.append((self.node.clock.time + WILL_DELAY, player.will))
        else:
            self.tell("will_due", player.will)
        self.willers.remove(player)
        player.vanish()

    def _pass_time(self, seconds: int) -> None:
        now = self.node.clock.time + seconds
        for due, name in list(self._pending):
            if due <= now:
                self._pending.remove((due, name))
                self.tell("will_due", name)
        self.node.pass_time(seconds)
        self.node.housekeep()
