"""``python -m tools.soak.cluster --cycles 300``: three NATS servers and three nodes under load and under faults.

In each cycle, clients publish, subscribe and move between the nodes while one fault occurs: a node or a NATS server is
killed or paused, a connection to NATS is slow, or cut in one direction or both, or a disk is full. Every few cycles all
faults end, and then every promise must have been kept. The exit status is 1 if a promise was broken.

``--takeover fresh``: sessions of clients that move start again if their nodes are away. Everything is promised to
clients that stay at one node, and to all clients for messages that are published after all faults. Clients that move
are promised the QoS 1 messages that were sent after they subscribed in their present session, and no QoS 2 message
twice. Publishers whose sessions outlive their connections stay at one node, too, because after a network split they
would have two sessions.

``--replicas 1``: nodes have copies of each other's data. In about every third cycle, a killed node also loses its disk
and returns with an empty one. The promises are the same."""

import argparse
import asyncio
import base64
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from taipan.broker.mqtt.packets import Ack
from taipan.broker.mqtt.reason_codes import USE_ANOTHER_SERVER
from tests.support.patience import patience
from tests.support.wire import Publish

from .client import Client, Gone, Publisher, Receiver, spread
from .cluster_nodes import APP, ClusterNode, Processes
from .commands import TOPIC, TOPICS, Commands
from .promises import Promises, Published

AREAS = 4
RETAINED = 6
QUIET = 20.0
"""Seconds that deliveries may take after every fault has ended."""
CALM = 2.0
"""Seconds without a delivery after which no message is pending."""
FAULTS = (
    ("none", 10),
    ("kill node", 25),
    ("pause node", 10),
    ("kill nats", 10),
    ("pause nats", 8),
    ("cut up", 8),
    ("cut down", 8),
    ("cut both", 10),
    ("drop connections", 6),
    ("slow", 8),
    ("full disk", 7),
)
LOSE_DISK = ("lose disk", 50)
"""With copies: two of five cycles."""
COMPLETE = 60.0
"""Seconds within which all copies are complete again."""


class MovingPublisher(Publisher):
    """Publishes through any node. Order is promised only for messages that it publishes through one node without moving
    to another."""

    stay = 0
    at = 0
    """The node at which this client stays."""

    @property
    def source(self) -> str:
        return f"{self.client_id}@{self.stay}"

    def opened(self, present: bool) -> None:
        if self.at != self.place:
            self.at = self.place
            self.stay += 1
            for message, _ in self.unfinished.values():
                if message is not None:
                    # Either of the two nodes may accept the message, so it has no order relative to others.
                    message.publisher = message.name
        super().opened(present)

    def _refused(self, packet: Ack, message: Published | None, publish: Publish | None) -> None:
        if publish is None or message is None or packet.reason_code != 0x97:
            self.fault(f"reason code {packet.reason_code:#x} in {packet}")
            return
        # A message that was sent again may have been accepted the first time, by another node.
        self.promises.refused(message, certain=False)
        message.candidates = set()
        self.unfinished.pop(packet.packet_id, None)


class ClusterSoak:
    """One run. ``run`` returns whether every promise was kept."""

    def __init__(
        self, seed: int, directory: Path | None, only: str = "", takeover: str = "refuse", replicas: int = 0
    ) -> None:
        self.rng = random.Random(seed)
        self.only = only
        self.replicas = replicas
        self.directory = directory or Path(tempfile.mkdtemp(prefix="taipan-soak-cluster-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.promises = Promises()
        self.promises.stopping = True  # a client may be refused while something is wrong
        self.processes = self._processes(random.Random(seed), takeover, replicas)
        self.fresh = takeover == "fresh"
        self.nodes = self.processes.nodes
        self.cycles = 0
        self.faults: dict[str, int] = {}
        self.faults_to_cause = (*FAULTS, LOSE_DISK) if replicas else FAULTS
        # Of those that move.
        self.filters: dict[Receiver, list[tuple[str, int]]] = {}
        self.begun_anew = 0
        promises = self.promises
        self.stable = [Receiver(promises, 0, f"stable-{v}-{n}", v, True) for n, v in enumerate((4, 5, 5))]
        self.moving = [Receiver(promises, 0, f"moving-{v}-{n}", v, True) for n, v in enumerate((3, 4, 5, 5))]
        self.members = [Receiver(promises, 0, f"member-{v}-{n}", v, True, "group") for n, v in enumerate((4, 5, 5))]
        promises.subscriber("group").ordered = False
        self.publishers = [
            MovingPublisher(promises, 0, f"pub-{n}-{v}", v, persistent, window)
            for n, (v, persistent, window) in enumerate(
                ((5, True, 20), (4, True, 5), (5, False, 30), (4, False, 1), (5, True, 1), (4, True, 10))
            )
        ]

        if replicas:
            for client in self.clients:
                client.expected_disconnects += (USE_ANOTHER_SERVER,)  # by a node in whose place another one runs
        self.commands = Commands(random.Random(seed), lambda: [node.port for node in self.nodes])
        self.disk_full = 0  # the last cycle with a full disk

        for client in [*self.moving, *self.members]:
            client.may_begin_anew = self.fresh
        # Clients whose last CONNECT has no answer: their sessions may have started again.
        self.unanswered: set[Receiver] = set()
        for client in self.moving:
            client.session.moves = self.fresh and client.version > 3

    def _processes(self, rng: random.Random, takeover: str, replicas: int) -> Any:
        return Processes(self.directory, self.promises, rng, takeover, replicas)

    @property
    def receivers(self) -> list[Receiver]:
        return [*self.stable, *self.moving, *self.members]

    @property
    def clients(self) -> list[Client]:
        return [*self.receivers, *self.publishers]

    # --- the run

    async def run(self, cycles: int, settle_every: int, seconds: float) -> bool:
        end = time.monotonic() + seconds
        try:
            if await self.processes.start():
                await self._begin()
            while not self.promises.violations and self.cycles < cycles and time.monotonic() < end:
                self.cycles += 1
                await self._cycle()
                if not self.promises.violations and (self.cycles % settle_every == 0 or self.cycles == cycles):
                    await self._settle()
                    print(f"  {self.account()}", flush=True)
            if not self.promises.violations and self.cycles % settle_every:
                await self._settle()
        finally:
            for client in self.clients:
                client.drop()
            await self.processes.close()
        self._complaints()
        kept = not self.promises.violations
        if not kept:
            (self.directory / "violations").write_text("\n\n".join(self.promises.violations))
        if kept:
            shutil.rmtree(self.directory)
        return kept

    def account(self) -> str:
        promises = self.promises
        replaced = sum(node.replaced for node in self.nodes)
        faults = " ".join(f"{name.replace(' ', '-')}={count}" for name, count in sorted(self.faults.items()))
        return (
            f"cycles={self.cycles} published={promises.published} promised={promises.promised} "
            f"delivered={promises.delivered} lost={promises.lost} qos2_duplicates={promises.duplicates} "
            f"order_violations={promises.disorder} other={promises.other} refused={promises.refusals} "
            f"qos1_repeated={promises.repeated} begun_anew={self.begun_anew} "
            f"commands_cleared={self.commands.count} replaced={replaced} faults: {faults}"
        )

    async def _begin(self) -> None:
        """Create the subscriptions that exist during the whole run."""
        everything = [(f"t/{area}/#", 2) for area in range(AREAS)]
        for number, receiver in enumerate(self.stable):
            await self._connect(receiver, self.nodes[number % len(self.nodes)], clean_start=True)
            await receiver.subscribe(*everything)
        for receiver in self.moving:
            await self._connect(receiver, self.rng.choice(self.nodes), clean_start=True)
            self.filters[receiver] = [(each, self.rng.choice((1, 2))) for each, _ in everything[:2]]
            await receiver.subscribe(*self.filters[receiver])
        for number, member in enumerate(self.members):
            await self._connect(member, self.nodes[number % len(self.nodes)])
            self.filters[member] = [("$share/g/t/0/#", 2)]
            await member.subscribe(*self.filters[member])
        self._count(not self.fresh)

    def _count(self, counts: bool) -> None:
        """Set whether messages must be delivered to clients whose sessions may start again."""
        if self.fresh:
            for session in {receiver.session for receiver in self.filters}:
                self.promises.count(session, counts)

    async def _connect(self, client: Client, node: ClusterNode, clean_start: bool = False) -> bool:
        """Connect, and return whether the session was present. Raises Gone if the node is not running or refuses the
        client."""
        client.port = node.port
        self.promises.note(f"{client.client_id} connects to {node.name}")
        return await client.connect(clean_start)

    async def _cycle(self) -> None:
        rng = self.rng
        names, weights = zip(*self.faults_to_cause, strict=True)
        fault = self.only or rng.choices(names, weights)[0]
        self.faults[fault] = self.faults.get(fault, 0) + 1
        if fault == "full disk":
            self.disk_full = self.cycles
        self.promises.note(f"cycle {self.cycles}: {fault}")
        if self.replicas:
            await self._complete_copies()
        for receiver in self.receivers:
            receiver.delay = spread(rng, 0.002, 0.05) if rng.random() < 0.25 else 0.0
            receiver.receive_maximum = rng.choice((0, 0, 1, 3, 20)) if receiver.version == 5 else 0
        actors: list[Coroutine[Any, Any, None]] = []
        actors += [self._take(receiver) for receiver in self.receivers if rng.random() < 0.7]
        actors += [self._publish(publisher) for publisher in self.publishers if rng.random() < 0.9]
        actors += [self.commands.go_on(number) for number in range(TOPICS)]
        tasks = [asyncio.create_task(actor) for actor in actors]
        await asyncio.sleep(rng.uniform(0.1, 0.5))
        mend = await self._break(fault)
        # Long enough for sessions to start again, if they may.
        await asyncio.sleep(spread(rng, 0.1, 8.0 if self.fresh else 3.0))
        await mend()
        await asyncio.sleep(rng.uniform(0.1, 0.4))
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        for client in self.clients:
            client.drop()
        self._refusals()
        self._complaints()

    def _refusals(self) -> None:
        """Report refused retained messages: no election takes long enough for one."""
        refused, self.commands.refused = self.commands.refused, []
        if refused and self.cycles - self.disk_full > 1:
            self.promises.other += 1
            self.promises.wrong(f"retained messages are refused: {refused}")

    async def _break(self, fault: str) -> Callable[[], Awaitable[object]]:
        """Cause a fault; return the function that ends it."""
        rng = self.rng
        node = rng.choice(self.nodes)
        server = rng.choice(self.processes.servers)
        if fault == "kill node":
            await node.kill()
            self.promises.retained_closed(node.port)
            return node.start
        if fault == "lose disk":
            await node.kill()
            self.promises.retained_closed(node.port)
            node.lose_disk()
            return node.start
        if fault == "pause node":
            node.send_signal(signal.SIGSTOP)
            return later(lambda: node.send_signal(signal.SIGCONT))
        if fault == "kill nats":
            await server.kill()
            return server.start
        if fault == "pause nats":
            server.send_signal(signal.SIGSTOP)
            return later(lambda: server.send_signal(signal.SIGCONT))
        if fault in ("cut up", "cut down", "cut both"):
            directions = ("up", "down") if fault == "cut both" else (fault.removeprefix("cut "),)
            for proxy in node.proxies:
                proxy.hold(*directions)
            return later(lambda: [proxy.release() for proxy in node.proxies])
        if fault == "drop connections":
            for proxy in node.proxies:
                proxy.drop()
        elif fault == "slow":
            for proxy in node.proxies:
                proxy.delay = spread(rng, 0.005, 0.2)
            return later(lambda: [proxy.release() for proxy in node.proxies])
        elif fault == "full disk":
            node.fill_disk(True)
            return later(lambda: node.fill_disk(False))
        return later(lambda: None)

    async def _complete_copies(self) -> None:
        """Wait until every node has all its copies: a disk may only be lost then."""
        await self._patiently("all copies are complete", self._copies_complete, COMPLETE)

    async def _copies_complete(self) -> bool:
        found = await asyncio.to_thread(_replicas, self.nodes[0])
        self.promises.note(f"cluster replicas: {found}")
        if found is None or found["hosted"]:
            return False
        complete = [each["node"] for each in found["copies"] if each["state"] == "in_sync"]
        return all(complete.count(node.name) >= self.replicas for node in self.nodes)

    # --- actors

    async def _take(self, receiver: Receiver) -> None:
        """Connect and disconnect again and again, at any node."""
        rng = self.rng
        while True:
            try:
                await self._come(receiver)
                while rng.random() < 0.7:
                    await asyncio.sleep(spread(rng, 0.01, 0.4))
                    if not receiver.connected:
                        raise Gone
                what = rng.random()
                if what < 0.4:
                    receiver.disconnect()
                    await asyncio.sleep(spread(rng, 0, 0.3))
                elif what < 0.7:
                    receiver.drop()
                # else: taken over
            except Gone:
                await asyncio.sleep(spread(rng, 0.01, 0.2))

    def _node_for(self, client: Client) -> ClusterNode:
        """Return any node; with ``fresh``, the client's own node if its session may not start again."""
        if self.fresh and client.persistent and not client.may_begin_anew:
            return self.nodes[self.clients.index(client) % len(self.nodes)]
        return self.rng.choice(self.nodes)

    async def _come(self, receiver: Receiver) -> None:
        """Connect and subscribe if the session is new or if that is unknown: MQTT 3.1 has no Session Present."""
        unanswered = receiver in self.unanswered
        if unanswered and receiver.session.moves:
            self.promises.doubtful(receiver.session)
        self.unanswered.add(receiver)
        present = await self._connect(receiver, self._node_for(receiver))
        self.unanswered.discard(receiver)
        if receiver.may_begin_anew and (not present or unanswered or receiver.version == 3):
            self.begun_anew += not present
            receiver.subscribe_unheard(*self.filters[receiver])

    async def _publish(self, publisher: MovingPublisher) -> None:
        rng = self.rng
        number = self.publishers.index(publisher)
        mine = [f"r/{n}" for n in range(RETAINED) if n % len(self.publishers) == number]
        while True:
            try:
                await self._connect(publisher, self._node_for(publisher))
                while rng.random() < 0.9:
                    for _ in range(rng.randint(1, 2 * publisher.window)):
                        if rng.random() < 0.05:
                            # One QoS each: sent again, QoS 1 takes effect again and QoS 2 does not.
                            await publisher.publish(rng.choice(mine), 1, True, rng.random() < 0.2)
                        else:
                            size = rng.choice((0, 0, 0, 100, 5000))
                            topic = f"t/{rng.randrange(AREAS)}/{rng.randrange(2)}"
                            await publisher.publish(topic, rng.choice((1, 2)), size=size)
                    await asyncio.sleep(spread(rng, 0, 0.1))
                if rng.random() < 0.5:
                    publisher.drop()
                else:
                    publisher.disconnect()
            except Gone:
                await asyncio.sleep(spread(rng, 0.01, 0.2))

    # --- checks

    def _complaints(self) -> None:
        for node in self.nodes:
            lines = node.complaints()
            if lines:
                self.promises.other += 1
                self.promises.wrong(f"{node.name}'s log:\n" + "\n".join(lines))

    async def _patiently(self, what: str, do: Callable[[], Awaitable[bool]], seconds: float = QUIET) -> None:
        """Wait until the condition is true; report a violation if the time limit passes."""
        begun = time.monotonic()
        while True:
            try:
                if await do():
                    return
            except Gone:
                pass
            waited = time.monotonic() - begun
            if waited > patience(seconds):
                self.promises.other += 1
                self.promises.wrong(f"all faults have ended, but after {waited:.1f} s: {what}")
                return
            await asyncio.sleep(0.1)

    async def _settle(self) -> None:
        """Let every client complete its exchanges and receive its pending messages; then nothing may be missing."""
        promises = self.promises
        promises.note("settling")
        rng = self.rng
        for publisher in self.publishers:
            if publisher.persistent and publisher.held:
                await self._patiently(f"{publisher.client_id} connects", lambda p=publisher: self._again(p))
        for receiver in self.receivers:
            receiver.delay = 0.0
            receiver.receive_maximum = rng.choice((0, 10)) if receiver.version == 5 else 0
            await self._patiently(f"{receiver.client_id} connects", lambda r=receiver: self._again(r))
        for publisher in self.publishers:
            if publisher.connected:
                await self._patiently(f"{publisher.client_id} is done", lambda p=publisher: self._finished(p))
        if self.fresh:
            await self._publish_once_more()
        still, owed = time.monotonic(), promises.owed()
        while owed and time.monotonic() - still < patience(QUIET):
            await asyncio.sleep(0.05)
            for receiver in self.receivers:
                if not receiver.connected:
                    # An older CONNECT of this client arrived later: a node was paused.
                    await self._patiently(f"{receiver.client_id} connects", lambda r=receiver: self._again(r))
            left = promises.owed()
            if left != owed:
                still, owed = time.monotonic(), left
        await asyncio.sleep(0.5)
        for receiver in self.receivers:
            if receiver.connected:
                await receiver.ping()
            else:
                promises.wrong(f"{receiver.client_id} lost its connection while nothing was to happen")
        if not promises.violations:
            connected = sum(client.connected for client in self.clients)
            await self._patiently(f"/clients has {connected} rows on each node", lambda: self._counted(connected))
            await self._patiently("retained messages are the same everywhere", self._retained_equal)
        if promises.owed():
            await self._note_sessions()
        for client in self.clients:
            if client.connected:
                client.disconnect()
        promises.settle()
        self._count(False)

    async def _publish_once_more(self) -> None:
        """Publish after the faults: whatever was lost with a session, these messages must reach every subscriber."""
        before = -1
        # Wait until moved sessions have received all pending messages, and no earlier CONNECT is in progress.
        while before != self.promises.delivered or not all(receiver.connected for receiver in self.filters):
            for receiver in self.filters:
                # The CONNACK that reported a new session may have been lost.
                await self._patiently(f"{receiver.client_id} subscribes", lambda r=receiver: self._subscribed(r))
            before = self.promises.delivered
            await asyncio.sleep(patience(CALM))
        self._count(True)
        for publisher in self.publishers:
            await self._patiently(f"{publisher.client_id} publishes", lambda p=publisher: self._published(p))
            await self._patiently(f"{publisher.client_id} is done", lambda p=publisher: self._finished(p))

    async def _subscribed(self, receiver: Receiver) -> bool:
        if not receiver.connected:
            await self._again(receiver)
        await receiver.subscribe(*self.filters[receiver])
        return True

    async def _published(self, publisher: MovingPublisher) -> bool:
        if not publisher.connected:
            await self._again(publisher)
        for area in range(AREAS):
            for qos in (1, 2):
                await publisher.publish(f"t/{area}/0", qos)
        return True

    async def _note_sessions(self) -> None:
        """Log the nodes of the sessions with missing messages, for the analysis of a failure."""
        for node in self.nodes:
            rows = await asyncio.to_thread(_clients, node)
            keys = ("clientid", "node", "connected", "mqueue_len", "inflight", "awaiting_rel")
            lines = [" ".join(f"{key}={row.get(key)}" for key in keys) for row in rows or ()]
            (self.directory / f"clients-{node.number}").write_text("\n".join(lines))

    async def _again(self, client: Client) -> bool:
        if isinstance(client, Receiver):
            await self._come(client)
        else:
            await self._connect(client, self._node_for(client))
        return True

    async def _finished(self, publisher: Publisher) -> bool:
        if not publisher.connected:
            await self._again(publisher)
        return not publisher.unfinished

    async def _counted(self, connected: int) -> bool:
        counts = [await asyncio.to_thread(_connected_clients, node) for node in self.nodes]
        self.promises.note(f"/clients: {counts}")
        return counts == [connected] * len(counts)

    async def _connect_checker(self, checker: Receiver, node: ClusterNode) -> None:
        await checker.connect()

    async def _retained_equal(self) -> bool:
        found = []
        for node in self.nodes:
            checker = Receiver(self.promises, node.port, f"checker-{node.number}", 5, False)
            await self._connect_checker(checker, node)
            await checker.subscribe(("r/#", 0), (f"{TOPIC}#", 0))
            await checker.ping()
            found.append(dict(checker.found))
            checker.drop()
            del self.promises.subscribers[checker.client_id]
        if any(each != found[0] for each in found):
            self.promises.note(f"retained: {found}")
            return False
        left = self.commands.left(found[0])
        if left:
            self.promises.other += 1
            self.promises.wrong(f"retained though an acknowledged clear followed: {left}")
        self.promises.retained_seen({topic: each for topic, each in found[0].items() if not topic.startswith(TOPIC)})
        return True


def later(do: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def mend() -> None:
        do()

    return mend


def _clients(node: ClusterNode) -> list[dict[str, Any]] | None:
    """Return the clients of the cluster as the node lists them; ``None``: no answer, or not from all nodes."""
    request = urllib.request.Request(f"http://127.0.0.1:{node.api_port}/api/v4/clients?_limit=1000")
    request.add_header("Authorization", "Basic " + base64.b64encode(":".join(APP).encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=patience(8.0)) as answer:
            body = json.loads(answer.read())
    except OSError:
        return None
    rows: list[dict[str, Any]] = body["data"]
    return None if body["meta"].get("missing_nodes") else rows


def _replicas(node: ClusterNode) -> Any:
    """Return the answer of ``taipan-ctl cluster replicas``; ``None``: no answer."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(":".join(APP))
        file.flush()
        command = [
            "--url",
            f"http://127.0.0.1:{node.api_port}",
            "--app-file",
            file.name,
            "--json",
            "cluster",
            "replicas",
        ]
        ctl = Path(sys.executable).parent / "taipan-ctl"
        done = subprocess.run([ctl, *command], capture_output=True, text=True, timeout=patience(30.0))
    return json.loads(done.stdout) if done.returncode == 0 else None


def _connected_clients(node: ClusterNode) -> int:
    """Return the number of connected clients; -1: no answer."""
    rows = _clients(node)
    return -1 if rows is None else sum(row["connected"] for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.soak.cluster", description=__doc__)
    parser.add_argument("--cycles", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long at the latest")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of what is done, not of when")
    parser.add_argument("--settle-every", type=int, default=3, metavar="N", help="cycles between complete checks")
    parser.add_argument(
        "--only", default="", choices=[name for name, _ in (*FAULTS, LOSE_DISK)], help="this fault in every cycle"
    )
    parser.add_argument("--takeover", default="refuse", choices=["refuse", "fresh"], help="of the nodes")
    parser.add_argument("--replicas", type=int, default=0, choices=[0, 1, 2], help="copies of each node's data")
    parser.add_argument("--dir", type=Path, default=None, help="data and logs; kept if anything is wrong")
    options = parser.parse_args()
    soak = ClusterSoak(options.seed, options.dir, options.only, options.takeover, options.replicas)
    print(
        f"soak-cluster seed={options.seed} takeover={options.takeover} replicas={options.replicas} "
        f"dir={soak.directory}",
        flush=True,
    )
    began = time.monotonic()
    kept = asyncio.run(soak.run(options.cycles, options.settle_every, options.seconds))
    print(f"{'ok' if kept else 'FAILED'} {soak.account()} seconds={time.monotonic() - began:.0f} seed={options.seed}")
    for violation in soak.promises.violations[:10]:
        print(violation, file=sys.stderr)
    if not kept:
        print(
            f"{len(soak.promises.violations)} violations; data and logs are kept in {soak.directory}", file=sys.stderr
        )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
