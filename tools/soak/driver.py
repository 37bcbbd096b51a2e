"""Driver: cycles of load, SIGKILL and restart on one data directory."""

import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from tests.support.node import free_port
from tests.support.patience import patience

from .client import Client, Gone, Publisher, Receiver, spread
from .promises import Promises, Published

AREAS = 6
"""Topics are ``t/<area>/<n>``, filters ``t/<area>/#``: no two filters of a session overlap."""
RETAINED = 5
BOUND = 15
"""Limit of messages in the queue of a session at the listener whose zone has ``queue_full = "refuse"``."""
NODE = """
import sys
from taipan.broker.store import compaction
compaction.COMPACT_ABOVE, compaction._SLICE_RECORDS = int(sys.argv.pop(1)), int(sys.argv.pop(1))
from taipan.management.node import main
sys.exit(main())
"""
"""The command of a node whose log is compacted early."""
START = 30.0
"""Time limit of a start, in seconds."""


@dataclass
class _Will:
    message: Published
    delay: int
    due: float = 0.0  # 0: not known yet


class Willer(Publisher):
    """A publisher with a will; ``will`` is None again after a DISCONNECT."""

    will: _Will | None = None
    stored = False  # certainly


class Node:
    """The process, with the same port and data directory each time; the amount of paged-out data differs."""

    def __init__(self, directory: Path, promises: Promises, rng: random.Random) -> None:
        self.rng = rng
        self.directory = directory
        self.promises = promises
        self.port = free_port()
        self.web_socket_port = free_port()
        self.refusing_port = free_port()
        self.log = directory / "node.log"
        self.process: asyncio.subprocess.Process | None = None
        self.usual = 0.5  # seconds that a start takes
        self.failed_starts = 0
        self._read = 0

    async def spawn(self) -> asyncio.subprocess.Process:
        settings = {
            "node.data_dir": str(self.directory / "data"),
            "durability.level": "disk",
            "durability.queue_memory": str(self.rng.choice((30_000, 1_000_000, 0))),
            "listeners.0.bind": f"127.0.0.1:{self.port}",
            "listeners.1.bind": f"127.0.0.1:{self.web_socket_port}",
            "listeners.2.name": "refusing",
            "listeners.2.type": "tcp",
            "listeners.2.bind": f"127.0.0.1:{self.refusing_port}",
            "listeners.2.zone": "refusing",
            "zones.refusing.queue_full": "refuse",
            "zones.refusing.max_queued_messages": str(BOUND),
            "zones.refusing.max_queued_bytes": "0",
            "zones.external.max_queued_messages": "0",
            "zones.external.max_queued_bytes": "0",
        }
        compact = self.rng.choice(((300_000, 50), (1_000_000, 2000), (67_108_864, 2000)))
        self.promises.note(f"start queue_memory={settings['durability.queue_memory']} compact={compact}")
        arguments = [str(each) for each in compact]
        arguments += [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]
        arguments += ["--set", "management.enabled=false", "--set", "dashboard.enabled=false"]
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", NODE, *arguments,
                stdout=asyncio.subprocess.PIPE, stderr=log, cwd=Path(__file__).parents[2],
            )  # fmt: skip
        return self.process

    async def start(self) -> bool:
        """Start the process and wait until it is ready."""
        begun = time.monotonic()
        process = await self.spawn()
        assert process.stdout is not None
        try:
            async with asyncio.timeout(patience(START)):
                line = await process.stdout.readline()
        except TimeoutError:
            line = b"nothing for so long"
        if not line.startswith(b"taipan ready"):
            self.failed_starts += 1
            await self.kill()
            self.promises.wrong(f"the start failed: {line!r}\n{self.log.read_text()[-2000:]}")
            return False
        self.usual = 0.8 * self.usual + 0.2 * (time.monotonic() - begun)
        self.promises.ready_at = time.monotonic()
        self.promises.note(f"ready pid={process.pid}")
        return True

    async def kill(self, how: int = signal.SIGKILL) -> int:
        """Signal it and wait for its end."""
        process = self.process
        assert process is not None
        self.promises.note(f"{signal.Signals(how).name} to pid={process.pid}")
        if process.returncode is None:
            process.send_signal(how)
        try:
            async with asyncio.timeout(patience(START)):
                await process.wait()
        except TimeoutError:
            self.promises.other += 1
            self.promises.wrong(f"it did not end on signal {how} within {patience(START):g} s")
            process.kill()
        return await process.wait()

    def complaints(self) -> list[str]:
        """Return the new lines of the log that should not exist."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
            self._read = log.tell()
        lines = text.decode(errors="replace").splitlines()
        for index, line in enumerate(lines):
            if "Traceback" in line or " ERROR " in line or " CRITICAL " in line:
                return lines[max(0, index - 2) : index + 25]
        return []


class Soak:
    """One run. ``run`` returns whether every promise was kept."""

    def __init__(self, seed: int, directory: Path | None = None, quiet: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.directory = directory or Path(tempfile.mkdtemp(prefix="taipan-soak-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.quiet = quiet
        self.promises = Promises()
        self.node = Node(self.directory, self.promises, random.Random(seed))
        self.cycles = 0
        self.starts = 0
        self.kills: dict[str, int] = {}
        self.wills: list[_Will] = []
        self._willers = 0
        self._delayed = 0
        self._delayed_open = False  # one was sent since the last settlement
        promises, port = self.promises, self.node.port
        self.stable = [Receiver(promises, port, "stable-4", 4, True), Receiver(promises, port, "stable-5", 5, True)]
        self.changing = [Receiver(promises, port, f"changing-{v}-{n}", v, True) for n, v in enumerate((3, 4, 5, 5))]
        self.clean = [Receiver(promises, port, f"clean-{v}", v, False) for v in (4, 5)]
        self.members = [Receiver(promises, port, f"member-{v}-{n}", v, True, "group") for n, v in enumerate((4, 5))]
        promises.subscriber("group").ordered = False
        # Sessions that are away for longer than they last, now and then.
        self.expiring = [Receiver(promises, port, f"expiring-{n}", 5, True) for n in (1, 8)]
        for receiver, expiry in zip(self.expiring, (1, 8), strict=True):
            receiver.expiry = expiry
            receiver.session.mortal = True
        refusing = self.node.refusing_port
        self.bounded = [Receiver(promises, refusing, f"bounded-{v}", v, True) for v in (4, 5)]
        self.publishers = [
            Publisher(promises, port, f"pub-{n}-{v}-{'p' if persistent else 'c'}", v, persistent, window)
            for n, (v, persistent, window) in enumerate(
                ((5, True, 20), (4, True, 5), (5, False, 50), (4, False, 1), (5, True, 1), (4, True, 3))
            )
        ]
        for client in (self.stable[1], self.members[1], self.changing[2], *self.publishers[1:3], self.expiring[1]):
            client.over_web_socket = True
            client.port = self.node.web_socket_port
        self.willers: list[Willer] = []

    @property
    def clients(self) -> list[Client]:
        return [
            *self.stable, *self.members, *self.changing, *self.expiring, *self.bounded, *self.clean, *self.publishers,
            *self.willers,
        ]  # fmt: skip

    # --- the run

    async def run(self, cycles: int, settle_every: int = 5, seconds: float = float("inf")) -> bool:
        """Run this number of cycles, or as many as fit in ``seconds``; stop at the first violation."""
        end = time.monotonic() + seconds
        if await self._start():
            await self._begin()
        while not self.promises.violations and self.cycles < cycles and time.monotonic() < end:
            self.cycles += 1
            self.promises.note(f"cycle {self.cycles}")
            await self._cycle()
            if not self.promises.violations and (self.cycles % settle_every == 0 or self.cycles == cycles):
                await self._settle()
                if not self.quiet:
                    print(f"  {self.account()}", flush=True)
        if not self.promises.violations and self.cycles % settle_every:
            await self._settle()
        for client in self.clients:
            client.drop()
        process = self.node.process
        if process is not None and process.returncode is None:
            await self.node.kill()
        self._complaints()
        kept = not self.promises.violations
        if kept:
            shutil.rmtree(self.directory)
        return kept

    def account(self) -> str:
        promises = self.promises
        kills = " ".join(f"{how}={count}" for how, count in sorted(self.kills.items()))
        return (
            f"cycles={self.cycles} starts={self.starts} published={promises.published} promised={promises.promised} "
            f"delivered={promises.delivered} lost={promises.lost} qos2_duplicates={promises.duplicates} "
            f"order_violations={promises.disorder} failed_starts={self.node.failed_starts} other={promises.other} "
            f"refused={promises.refusals} expired={promises.expired} "
            f"sessions_expired={promises.sessions_expired} "
            f"qos1_repeated={promises.repeated} kills: {kills}"
        )

    async def _start(self) -> bool:
        if not await self.node.start():
            return False
        self.starts += 1
        now = time.monotonic()
        for will in self.wills:
            if not will.due:
                will.due = now + will.delay
        return True

    async def _begin(self) -> None:
        """Create the subscriptions that exist during the whole run."""
        everything = [(f"t/{area}/#", 2) for area in range(AREAS)]
        for receiver in self.stable:
            await receiver.connect(clean_start=True)
            await receiver.subscribe(*everything, ("w/#", 2), ("d/#", 2), ("q/#", 2))
        for receiver, qos in zip(self.bounded, (1, 2), strict=True):
            await receiver.connect(clean_start=True)
            await receiver.subscribe(("q/#", qos))
        for member in self.members:
            await member.connect()
        for member in self.members:
            await member.subscribe(("$share/g/t/0/#", 2))

    async def _cycle(self) -> None:
        rng = self.rng
        for receiver in (*self.stable, *self.members, *self.changing, *self.expiring, *self.bounded):
            slow = rng.random() < 0.25
            receiver.delay = spread(rng, 0.002, 0.1) if slow else 0.0
            receiver.receive_maximum = rng.choice((0, 0, 1, 3, 20)) if receiver.version == 5 else 0
        actors: list[Coroutine[Any, Any, None]] = []
        actors += [self._take(receiver, False) for receiver in (*self.stable, *self.members) if rng.random() < 0.6]
        actors += [self._take(receiver, False) for receiver in self.bounded if rng.random() < 0.4]
        actors += [self._take(receiver, True) for receiver in self.expiring if rng.random() < 0.3]
        actors += [self._take(receiver, True) for receiver in (*self.changing, *self.clean) if rng.random() < 0.7]
        actors += [self._publish(publisher) for publisher in self.publishers if rng.random() < 0.9]
        actors += [self._will() for _ in range(rng.choice((0, 0, 1, 2)))]
        tasks = [asyncio.create_task(self._until_gone(actor)) for actor in actors]

        how = rng.choices(
            ("load", "connecting", "start-up", "stopping", "graceful"), weights=(55, 12, 15, 12, 6)
        )[0]  # fmt: skip
        self.kills[how] = self.kills.get(how, 0) + 1
        if how == "connecting":
            await asyncio.sleep(spread(rng, 0, 0.03))
        else:
            await asyncio.sleep(rng.uniform(0.1, 0.6))
        if how == "stopping":
            assert self.node.process is not None
            self.promises.note("SIGTERM, and soon SIGKILL")
            self.promises.stopping = True
            self.node.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(spread(rng, 0, 0.08))
            await self.node.kill()
        elif how == "graceful":
            self.promises.stopping = True
            code = await self.node.kill(signal.SIGTERM)
            if code:
                self.promises.other += 1
                self.promises.wrong(f"exit status {code} on SIGTERM")
        else:
            await self.node.kill()
        await self._silence(tasks)
        self.promises.stopping = False
        if how == "start-up":
            for _ in range(rng.choice((1, 1, 2, 3))):
                await self.node.spawn()
                await asyncio.sleep(rng.uniform(0.2, 1.1) * self.node.usual)
                await self.node.kill()
        self._complaints()
        if await self._start() and rng.random() < 0.7:
            await self._check_retained()

    async def _silence(self, tasks: list[asyncio.Task[None]]) -> None:
        """Read everything that the dead node had sent; then no client is connected."""
        for _ in range(50):
            if not any(client.connected for client in self.clients):
                break
            await asyncio.sleep(0.005)
        for client in self.clients:
            client.drop()
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        for willer in self.willers:
            self._will_is_due(willer)  # it was in force when the node died or sent its client away
        self.willers.clear()

    async def _until_gone(self, actor: Awaitable[None]) -> None:
        try:
            await actor
        except Gone:
            pass

    def _complaints(self) -> None:
        lines = self.node.complaints()
        if lines:
            self.promises.other += 1
            self.promises.wrong("the node's log:\n" + "\n".join(lines))

    # --- actors

    async def _take(self, receiver: Receiver, changing: bool) -> None:
        rng = self.rng
        fresh = changing and (not receiver.held or rng.random() < 0.05)
        await receiver.connect(clean_start=fresh)
        if changing and rng.random() < 0.5:
            await self._change(receiver)
        while True:
            await asyncio.sleep(spread(rng, 0.001, 0.15))
            what = rng.random()
            if what < 0.6:
                if changing:
                    await self._change(receiver)
            elif what < 0.7:
                receiver.disconnect()
                if rng.random() < 0.3:
                    return
                await asyncio.sleep(spread(rng, 0, 0.05))
                await receiver.connect()
            elif what < 0.8:
                receiver.drop()
                await receiver.connect()
            elif what < 0.9:
                await receiver.connect()  # takes over
            elif what < 0.92 and changing:
                await receiver.connect(clean_start=True)
                await self._change(receiver)
            elif what < 0.94 and changing and receiver.version == 5 and receiver.persistent:
                receiver.disconnect(end=True)
                await asyncio.sleep(spread(rng, 0, 0.05))
                await receiver.connect()

    async def _change(self, receiver: Receiver) -> None:
        rng = self.rng
        topic_filter = "r/#" if rng.random() < 0.1 else f"t/{rng.randrange(AREAS)}/#"
        state = receiver.session.filters.get(topic_filter)
        if state is not None and rng.random() < (0.6 if state.solid else 0.2):
            await receiver.unsubscribe(topic_filter)
        else:
            await receiver.subscribe((topic_filter, rng.choice((1, 2, 2))))

    async def _publish(self, publisher: Publisher) -> None:
        rng = self.rng
        number = self.publishers.index(publisher)
        mine = [f"r/{n}" for n in range(RETAINED) if n % len(self.publishers) == number]
        await publisher.connect()
        # The last one is for what may be refused alone: in 3.x, it has to wait.
        bounded = 1.0 if publisher is self.publishers[-1] else 0.05 if publisher.version == 5 else 0.0
        while True:
            for _ in range(rng.randint(1, 2 * publisher.window)):
                if rng.random() < bounded:
                    await publisher.publish(f"q/{rng.randrange(2)}", rng.choice((1, 2)))
                elif rng.random() < 0.1 and mine:
                    clear = rng.random() < 0.3
                    # One QoS each: sent again, QoS 1 takes effect again and QoS 2 does not, which would mix them up.
                    await publisher.publish(rng.choice(mine), 1 + number % 2, True, clear)
                elif rng.random() < 0.004:
                    self._delayed += 1
                    await publisher.publish(f"d/{self._delayed}", rng.choice((1, 2)), delay=1)
                    self._delayed_open = True
                else:
                    topic = f"t/{rng.randrange(AREAS)}/{rng.randrange(2)}"
                    size = rng.choice((0, 0, 0, 100, 5000))
                    expires = publisher.version == 5 and rng.random() < 0.15
                    expiry = rng.choice((1, 2, 5, 10, 3600)) if expires else 0
                    await publisher.publish(topic, rng.choice((1, 2)), size=size, expiry=expiry)
            await asyncio.sleep(spread(rng, 0, 0.1))
            what = rng.random()
            if what < 0.03:
                publisher.drop()
                await publisher.connect()
            elif what < 0.06:
                await publisher.connect()
            elif what < 0.08:
                publisher.disconnect()
                await publisher.connect()

    async def _will(self) -> None:
        """Run a client with a will: its connection is lost, it sends DISCONNECT, or its node is killed."""
        rng = self.rng
        self._willers += 1
        version = rng.choice((4, 5))
        persistent = rng.random() < 0.5
        name = f"willer-{self._willers}"
        delay = rng.randint(0, 2) if version == 5 else 0
        willer = Willer(self.promises, self.node.port, name, version, persistent, 1)
        message = self.promises.sending(name, f"w/{rng.randrange(3)}", rng.choice((1, 2)))
        message.note(f"will with delay={delay} persistent={persistent}")
        properties = {c.WILL_DELAY_INTERVAL: delay} if delay else {}
        await willer.connect(False, Will(message.topic, message.name.encode(), message.qos, False, properties))
        self.willers.append(willer)
        willer.will = _Will(message, delay)
        # Behind this acknowledgement the will is on disk as well.
        await willer.publish("t/0/0", 1)
        await willer.finish()
        willer.stored = True
        await asyncio.sleep(spread(rng, 0, 0.2))
        what = rng.random()
        if what < 0.4:
            willer.drop()
            await asyncio.sleep(0.1)  # the node has seen it by then
            self._will_is_due(willer)
            self.willers.remove(willer)
        elif what < 0.6:
            willer.disconnect()
            willer.will = None
            self.willers.remove(willer)
            message.note("its client said goodbye")
        # else it stays

    def _will_is_due(self, willer: Willer) -> None:
        will = willer.will
        if will is None or not willer.stored:
            return
        self.wills.append(will)
        self.promises.acknowledged(will.message)

    # --- checks

    async def _check_retained(self) -> None:
        checker = Receiver(self.promises, self.node.port, "checker", 5, False)
        try:
            await checker.connect()
            await checker.subscribe(("r/#", 0))
            await checker.ping()
        except Gone:
            self.promises.wrong("the node that was ready has ended")
            return
        self.promises.retained_seen(checker.found)
        checker.drop()
        del self.promises.subscribers["checker"]

    async def _settle(self) -> None:
        """Let every client complete its exchanges and receive its pending messages; then nothing may be missing."""
        promises = self.promises
        promises.note("settling")
        coming = (each for each in (*self.changing, *self.expiring) if each.held or each.unsure)
        takers = [*self.stable, *self.members, *self.bounded, *coming]
        publishers = [publisher for publisher in self.publishers if publisher.persistent and publisher.held]
        now = time.monotonic()
        for will in self.wills:
            will.due = will.due or now + will.delay
        try:
            for publisher in publishers:
                await publisher.connect()
            for receiver in takers:
                receiver.delay = 0.0
                receiver.receive_maximum = self.rng.choice((0, 10))
                await receiver.connect()
            for publisher in publishers:
                await publisher.finish()
            end = max((will.due for will in self.wills), default=0.0) + 1.5
            if self._delayed_open:
                # A publisher may just have sent it again, and then it comes again.
                self._delayed_open = False
                await asyncio.sleep(1.3)
            still = time.monotonic()
            owed = promises.owed()
            while owed:
                await asyncio.sleep(0.02)
                left = promises.owed()
                if left != owed:
                    still = time.monotonic()
                    owed = left
                elif time.monotonic() - still > 3 and time.monotonic() > end:
                    break
            for _ in range(3):
                await asyncio.sleep(0.02)
                for receiver in takers:
                    await receiver.ping()
            # Behind this acknowledgement everything that was acknowledged to the node is on disk too.
            barrier = Publisher(promises, self.node.port, "barrier", 5, False, 1)
            await barrier.connect()
            await barrier.publish("t/0/0", 1)
            await barrier.finish()
            for receiver in takers:
                await receiver.ping()
            barrier.drop()
        except Gone:
            promises.wrong("a connection was lost while nothing was to happen")
        for client in self.clients:
            if client.connected:
                client.disconnect()
        if not promises.violations:
            await self._check_retained()
        self.wills.clear()
        promises.settle()
