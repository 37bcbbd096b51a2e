"""World: a cluster, its clients, and the events that affect them, all determined by one seed."""

import asyncio
import gc
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

from taipan.broker.channel import review
from taipan.broker.cluster.context import PIECE_MESSAGES
from taipan.broker.cluster.members.own_record import BUCKET as MEMBERS
from taipan.broker.cluster.moving.session_keys import BUCKET
from taipan.broker.cluster.nats.interface import NatsRefused
from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.wire import SessionKey, node_key
from taipan.broker.core.cluster import RUNNING, ChangeRefused
from taipan.broker.persistence.tables import NotAgreed
from tests.support.virtual_nats import VirtualNats

from . import promises
from .client import ControllerClient, DeviceClient, EndingClient, RetainingClient, Sent, SimulatedClient
from .disk import SimulatedDisk
from .files import simulated_writers
from .loop import NOBODY, Killed, Life, Spinning, VirtualLoop
from .node import Row, SimulatedNode, settings_of

NODES: Final = 3
TOPICS: Final = ("t/1", "t/2", "t/3")
SHARED_TOPICS: Final = ("s/1", "s/2")
RETAINED_TOPICS: Final = ("r/1", "r/2", "r/3")
ROWS: Final = ("one", "two", "three")
DAY: Final = 86_400
SETTLE: Final = 240.0
"""Seconds after the last fault within which the cluster must settle."""
MAX_STEPS: Final = 400_000
"""Maximum number of callbacks in a run."""
FEATURES: Final = ("members", "rows", "links", "ownership", "shared", "retained")
"""The parts of a run: without ``links`` there are no clients; without ``ownership`` each client stays at its node."""
PAGING: Final = "paging"
"""Another feature: some nodes keep almost no payloads of queued messages in memory."""
RESTLESS: Final = "restless"
"""Another feature: subscribers move all the time, and data between nodes is delayed by seconds."""
BURSTS: Final = "bursts"
"""Another feature: publishers send several messages in one piece."""
PIECES: Final = "pieces"
"""Another feature: a queue moves to another node in pieces of two or three messages."""
ENDS: Final = "ends"
"""Another feature: clients end their sessions and start new ones."""
CLEARS: Final = "clears"
"""Another feature: retained messages are cleared and retained again, at one node after another."""
COMMANDS: Final = "commands"
"""Another feature: devices retain commands, controllers clear each one as soon as they receive it, and both move."""
FORCED: Final = "forced"
"""Another feature: nodes are forced out, and return with an empty disk. Their sessions end, so that deliveries are not
promised; the cluster must only settle."""
FRESH: Final = "fresh"
"""Another feature: ``takeover`` is ``fresh``, so that sessions start again if their nodes are unavailable. Promises to
their clients are weaker: ``promises._received_by_one_that_moves``."""
EVACUATED: Final = "evacuated"
"""Another feature: nodes are evacuated, so that sessions of offline clients move."""
REPLICAS: Final = "replicas"
"""Another feature: nodes have copies of each other's data, and lose their disks."""
DEFAULT: Final = ("members", "rows", "links")
EVERYTHING: Final = (*FEATURES, PAGING, RESTLESS, BURSTS, PIECES, ENDS, CLEARS)
"""The features of ``--features all``."""
APART: Final = (COMMANDS, FORCED, FRESH, EVACUATED, REPLICAS)
"""Features that apply only if they are named."""


COPIES_ERRORS: Final = ("replicas_trouble", "cluster_membership_lost", "cluster_refused_this_node")
"""Errors that nodes with copies may log while something is wrong."""


class RowChange:
    """A change of a row that was requested at some node; ``end``: when it was acknowledged."""

    def __init__(self, value: str, start: float) -> None:
        self.value = value
        self.start = start
        self.end = float("inf")
        self.acknowledged = False


class TooLong(Exception):
    """The run does not end."""


class _Errors(logging.Handler):
    """Reports every log line of nodes at ERROR, or with a traceback, as a violation."""

    def __init__(self, world: "World") -> None:
        super().__init__(logging.DEBUG)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            text = logging.Formatter("%(name)s: %(message)s").format(record)
            if not any(each in text for each in self._world.expected_errors):
                self._world.wrong(text)
        if self._world.trace is not None:
            self._world.note(f"LOG {record.name.removeprefix('taipan.broker.')}: {record.getMessage()}")


class World:
    """The simulated cluster. ``features``: the parts of the run. ``trace`` is called with a line for each event."""

    def __init__(
        self,
        seed: int,
        features: tuple[str, ...] = FEATURES,
        trace: Callable[[str], None] | None = None,
        nodes: int = NODES,
    ) -> None:
        self.seed = seed
        self.features = features
        self.trace = trace
        self.rng = Random(seed)
        self.loop = VirtualLoop()
        self.hub = VirtualNats(Random(self.rng.getrandbits(32)), servers=3)
        self.hub.trace = self.note if trace is not None else None
        self.violations: list[str] = []
        self.expected_errors: tuple[str, ...] = ()
        self.nodes: list[SimulatedNode] = []
        self.clients: list[SimulatedClient] = []
        self.publishers: list[SimulatedClient] = []
        self.subscribers: list[SimulatedClient] = []
        self.ending: list[EndingClient] = []
        self.retaining: list[RetainingClient] = []
        self.controllers: list[ControllerClient] = []
        self.groups: dict[str, list[SimulatedClient]] = {}
        self.messages: list[Sent] = []
        self.row_changes: dict[str, list[RowChange]] = {}
        self.kills = 0
        self.disks_lost = 0
        self.unrouted = 0
        self.starting: list[asyncio.Task[None]] = []
        # A node that is about to be forced out.
        self.forcing: SimulatedNode | None = None
        # Whether a client may find a session that started again without its knowledge.
        self.may_begin_anew = FRESH in features or FORCED in features
        # Whether sessions may have ended with their nodes.
        self.sessions_end = FRESH in features
        # Whether an operator has removed a node, with all data on its disk.
        self.forced_out = False
        self.stays = "ownership" not in features
        self.bursts = BURSTS in features
        self.evacuates = EVACUATED in features
        self.directory: Path | None = None
        self._calm = False
        level = "disk"
        cluster: dict[str, object] = {"strict_subscribe": True, "takeover": "fresh" if FRESH in features else "refuse"}
        memory = Random(seed)  # a separate one, so that the rest of a seed is the same without it
        # Chosen by a separate generator as well.
        piece = Random(f"pieces {seed}").choice((2, 3)) if PIECES in features else PIECE_MESSAGES
        if REPLICAS in features:
            cluster |= {"replicas": 1, "replica_timeout": 1.0, "failover_after": 6.0}
            # In memory if possible: nothing but the simulation decides what a crash leaves.
            shared = Path("/dev/shm")
            self.directory = Path(
                tempfile.mkdtemp(prefix="taipan-simulation-", dir=shared if shared.exists() else None)
            )
        # For timeouts: writing a hundred pieces to a slow disk takes longer than writing one.
        self.timeout_factor = 3.0 if PIECES in features else 1.0
        for number in range(nodes):
            name = f"n{number + 1}@127.0.0.1"
            bound = memory.choice((1, 300, 3000)) if PAGING in features else 0
            directory = None if self.directory is None else self.directory / f"n{number + 1}"
            settings = settings_of(name, level, cluster, bound, directory)
            self.nodes.append(SimulatedNode(name, settings, self, piece, directory))

    # ----------------------------------------------------------- what is told

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.loop.time():10.4f} {text}")

    def wrong(self, text: str) -> None:
        self.violations.append(f"at {self.loop.time():.3f}: {text}")
        self.note(f"WRONG {text}")

    def sent(self, sent: Sent) -> None:
        self.messages.append(sent)

    def subscribed(self, client: SimulatedClient) -> None:
        """Handle a SUBACK."""

    def accepted(self, client: SimulatedClient, present: bool) -> None:
        """Handle a CONNACK with success."""
        if self.may_begin_anew and client.node is not None:
            # The node is cut off, and its session is not the one of the key: messages sent to the key's session are new
            # here, and messages sent here are new there.
            cut_off = client.node.name not in [key.node for key in self.session_keys() if key.client_id == client.name]
            client.unanswered = client.unanswered or (cut_off and present)
            if cut_off or client.cut_off:
                for sent in client.unacknowledged.values():
                    sent.again = True
            client.cut_off = cut_off
        if not client.expiry or self.sessions_end:
            return
        if client.sessions and not present and client not in self.ending:
            # A node that has started without NATS still serves clients (``cluster.isolated``).
            if client.node is None or client.node.knows_sessions:
                self.wrong(f"{client.name} lost its session")
        for node in self.nodes:
            # A CONNECT with Clean Start does not wait for an absent node, which may have an older connection for a
            # moment.
            asked, at = client.asked_at, client.node
            # Nor does a node that is cut off know that another one runs in its place, and has moved its sessions.
            certain = client not in self.ending and REPLICAS not in self.features
            reached = certain or (self._hears(at, node, asked) and self._hears(node, at, asked))
            if node is not client.node and node.running and reached and client.name in node.server.context.channels:
                self.wrong(f"{client.name} is connected to {node.name}, too")

    def _hears(self, one: SimulatedNode | None, other: SimulatedNode | None, since: float) -> bool:
        """Return whether one node has considered another one running since that time."""
        if one is None or other is None or not one.running:
            return False
        found = next((each for each in one.server.cluster.members() if each.name == other.name), None)
        return found is not None and found.status == RUNNING and found.since <= since

    def session_keys(self) -> list[SessionKey]:
        """Return the keys of sessions in the bucket, as a running node reads them."""
        cluster = next((node.server.cluster for node in self.nodes if node.running), None)
        if cluster is None:
            return []  # the last node has died since it sent the CONNACK that a client is reading
        assert isinstance(cluster, NatsCluster)
        values = [entry.value for entry in self.hub.buckets[BUCKET].last.values() if entry.value is not None]
        found = [cluster.session_keys.places.value_of(value) for value in values]
        return [each for each in found if each is not None]

    def refused(self, client: SimulatedClient, code: int) -> None:
        """Handle a CONNACK with an error."""
        if self._calm and code not in (0x88, 0x97):
            self.wrong(f"{client.name} was refused with {code:#x}")

    def may_refuse(self, codes: list[int]) -> bool:
        """Return whether a SUBACK may have these codes: a node that cannot know whether it was replaced stores
        nothing."""
        return REPLICAS in self.features and all(code == 0x97 for code in codes)

    def publish_refused(self, sent: Sent, code: int) -> None:
        """Handle a PUBACK or PUBREC with an error: the client does not send a refused message again."""
        if code not in (0x97, 0x88):
            self.wrong(f"{sent} was refused with {code:#x}")

    # ---------------------------------------------------------------- the run

    def run(self) -> list[str]:
        """Run the simulation; return the violations."""
        handler = _Errors(self)
        log = logging.getLogger("taipan")
        log.addHandler(handler)
        level = log.level
        log.setLevel(logging.INFO if self.trace is not None else logging.ERROR)
        log.propagate = False
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self._unhandled)
        gc.disable()
        try:
            # No slice of a review ends earlier on a slow machine.
            with simulated_writers(), patch.object(review, "perf_counter", self.loop.time):
                self.loop.run_until_complete(self._run())
        except TooLong as error:
            self.wrong(str(error))
        except Spinning:
            self.wrong(f"the loop turns and no time passes: {self.loop.latest}")
        finally:
            for node in self.nodes:
                node.life.over = True
                if node.files is not None:
                    node.context.copy().run(node.files.crash)
            if self.directory is not None:
                shutil.rmtree(self.directory, ignore_errors=True)
            self.loop.set_exception_handler(lambda loop, context: None)
            self.loop.close()
            asyncio.set_event_loop(None)
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = True
            gc.enable()
        return self.violations

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Killed) and "was destroyed but it is pending" not in context["message"]:
            self.wrong(f"{context['message']}: {error!r}")

    async def _run(self) -> None:
        await asyncio.gather(*(node.start() for node in self.nodes))
        await self._until("every node sees the others", self._all_running)
        self._make_clients()
        for client in self.clients:
            client.connect()
        await self._until("all are connected and subscribed", self._all_subscribed)
        await self._until("quiet before the faults", self._quiet)
        if self.violations:
            return
        for publisher in self.publishers:
            self.loop.call_later(0.0, self._publish_on, publisher, context=NOBODY)
        for client in self.retaining:
            self._retain_on(client)
        for controller in self.controllers:
            self._command_on(controller)
        await self._faults()
        await self._recover()
        if not self.violations:
            promises.check(self)
            await self._publish_once_more()

    async def _until(self, what: str, holds: Callable[[], bool], seconds: float = SETTLE) -> bool:
        seconds *= self.timeout_factor
        deadline = self.loop.time() + seconds
        while not holds():
            if self.loop.time() > deadline:
                self.wrong(f"not in {seconds:.0f} s: {what}; {self._state()}")
                return False
            if self.loop.steps > MAX_STEPS:
                raise TooLong(f"{self.loop.steps} callbacks in {self.loop.time():.0f} s, waiting until {what}")
            await asyncio.sleep(0.25)
        return True

    def _all_running(self) -> bool:
        if self._calm:
            self._start_anew_if_forced_out()
        for node in self.nodes:
            if not node.running:
                return False
            members = node.server.cluster.members()
            if len(members) != len(self.nodes) or any(member.status != RUNNING for member in members):
                return False
        return True

    # ---------------------------------------------------------------- clients

    def _make_clients(self) -> None:
        durable = DAY
        if "links" not in self.features:
            return
        for number in range(self.rng.randint(2, 3)):
            self.publishers.append(SimulatedClient(self, f"p{number}", durable))
        for number in range(self.rng.randint(2, 4)):
            filters = self.rng.choice([{"t/+": 2}, {"t/1": 1, "t/2": 2}, {"t/#": 1}, {"t/3": 2}])
            self.subscribers.append(SimulatedClient(self, f"s{number}", durable, filters))
        self.subscribers.append(SimulatedClient(self, "clean", 0, {"t/+": self.rng.randint(0, 2)}))
        self.clients = [*self.publishers, *self.subscribers]
        if "shared" in self.features:
            for number in range(self.rng.randint(2, 3)):
                member = SimulatedClient(self, f"m{number}", durable, {"$share/g/s/+": 2})
                self.groups.setdefault("$share/g/s/+", []).append(member)
                self.clients.append(member)
        if ENDS in self.features:
            for number in range(2):
                client = EndingClient(self, f"e{number}", durable, {"t/+": 2})
                self.ending.append(client)
                self.clients.append(client)
                self._end_later(client)

        if CLEARS in self.features:
            self.retaining = [RetainingClient(self, f"k{number}", durable) for number in range(2)]
            self.clients += self.retaining
        if COMMANDS in self.features:
            for number in range(2):
                device = DeviceClient(self, f"d{number}", durable)
                self.controllers.append(ControllerClient(self, f"c{number}", durable, device))
                self.clients += [device, self.controllers[-1]]

    def _command_on(self, controller: ControllerClient) -> None:
        if self._calm:
            return
        device = controller.device
        device.command()
        for client in (device, controller):
            if device.rng.random() < 0.1:
                client.move()
        self.loop.call_later(device.rng.choice((0.05, 0.3, 1.0)), self._command_on, controller, context=NOBODY)

    def _retain_on(self, client: RetainingClient) -> None:
        if self._calm:
            return
        client.change()
        if client.rng.random() < 0.2:
            client.move()
        self.loop.call_later(client.rng.choice((0.05, 0.3, 1.0)), self._retain_on, client, context=NOBODY)

    def _end_later(self, client: EndingClient) -> None:
        if not self._calm:
            client.end()
            self.loop.call_later(client.rng.choice((0.5, 2.0, 6.0)), self._end_later, client, context=NOBODY)

    def _publish_on(self, publisher: SimulatedClient) -> None:
        """Publish some messages, and schedule the next ones."""
        if self._calm:
            return
        topics = list(TOPICS)
        if "shared" in self.features:
            topics += SHARED_TOPICS
        for _ in range(self.rng.randint(1, 8)):
            topic = self.rng.choice(topics)
            count = self.rng.choice((1, 1, 2, 6)) if self.bursts else 1
            publisher.publish(topic, self.rng.choice((0, 1, 1, 2, 2)), count=count)
        if "retained" in self.features and self.rng.random() < 0.5:
            publisher.publish(self.rng.choice(RETAINED_TOPICS), self.rng.randint(1, 2), retain=True)
        self.loop.call_later(self.rng.expovariate(2.0), self._publish_on, publisher, context=NOBODY)

    def _all_subscribed(self) -> bool:
        return all(client.online and (client.subscribed or not client.filters) for client in self.clients)

    # ------------------------------------------------------------------- rows

    def change_row(self, node: SimulatedNode) -> None:
        key = self.rng.choice(ROWS)
        changes = self.row_changes.setdefault(key, [])
        change = RowChange(f"{key}-{len(changes)}", self.loop.time())
        changes.append(change)
        self.loop.create_task(self._change_row(node, key, change), context=node.context.copy())

    async def _change_row(self, node: SimulatedNode, key: str, change: RowChange) -> None:
        tables = node.server.tables
        assert tables.shared_rows is not None
        if tables.in_trouble or tables.shared_rows.begin():
            return
        node.rows.put(key, Row(change.value))
        stored = await tables.stored()
        try:
            await tables.shared_rows.agreed()
        except NotAgreed as error:
            self.note(f"row {key} = {change.value} at {node.name}: {error}")
            return
        if stored:
            change.end = self.loop.time()
            change.acknowledged = True
            self.note(f"row {key} = {change.value} at {node.name} is acknowledged")

    # ----------------------------------------------------------------- faults

    async def _faults(self) -> None:
        rng = self.rng
        hub = self.hub
        if rng.random() < 0.8:
            hub.delay = (0.0, rng.choice((0.001, 0.01, 0.1, 0.5)))
        if rng.random() < 0.5:
            hub.drop = rng.choice((0.001, 0.02, 0.1))
        if rng.random() < 0.5:
            hub.repeat = rng.choice((0.001, 0.02, 0.1))
        if rng.random() < 0.5:
            hub.disorder = rng.choice((0.001, 0.02, 0.1))
        if rng.random() < 0.3:
            hub.lose_request = hub.lose_answer = rng.choice((0.01, 0.1))
        for node in self.nodes:
            node.disk.delay = (0.0, rng.choice((0.001, 0.01, 0.1)))
        kinds: list[tuple[float, Callable[[], None]]] = [
            (6.0, self._move_client),
            (3.0, self._drop_client),
            (2.0, self._kill_node),
            (2.0, self._kill_at_operation),
            (1.0, self._partition),
            (1.0, self._cut_node),
            (0.7, self._lose_leader),
            (0.5, self._pause),
            (0.7, self._stop_server),
            (4.0 if "rows" in self.features else 0.0, self._change_some_row),
        ]
        # A run leaves out some kinds of events, so that the others coincide more often.
        weights = [weight if rng.random() < 0.6 else 0.0 for weight, _ in kinds]
        end = self.loop.time() + rng.uniform(3.0, 25.0)
        pace = rng.choice((0.3, 1.0, 3.0))
        if RESTLESS in self.features:
            kinds += [(20.0, self._move_subscriber), (4.0, self._slow_way)]
            weights += [20.0, 4.0]
            pace = rng.choice((2.0, 6.0))
        if CLEARS in self.features or COMMANDS in self.features:
            kinds.append((4.0, self._slow_writes))
            weights.append(4.0)
        if FORCED in self.features:
            self.expected_errors = ("cluster_membership_lost", "cluster_refused_this_node")
            kinds.append((4.0, self._force_out))
            weights.append(4.0)
            end += 20.0
        if REPLICAS in self.features:
            self.expected_errors = COPIES_ERRORS
            kinds.append((20.0, self._lose_disk))
            weights.append(20.0)
            pace = rng.choice((0.5, 1.5))
            end += 60.0
        if EVACUATED in self.features:
            kinds.append((4.0, self._evacuate))
            weights.append(4.0)
            end += 10.0
        while self.loop.time() < end and not self.violations:
            await asyncio.sleep(rng.expovariate(pace))
            if self.loop.steps > MAX_STEPS:
                raise TooLong(f"{self.loop.steps} callbacks in {self.loop.time():.0f} s, among faults")
            if any(weights):
                rng.choices([call for _, call in kinds], weights)[0]()

    def _some(self) -> SimulatedNode | None:
        running = [node for node in self.nodes if node.running]
        return self.rng.choice(running) if running else None

    def _move_client(self) -> None:
        if self.clients:
            self.rng.choice(self.clients).move(self._some())

    def _move_subscriber(self) -> None:
        self.rng.choice(self.subscribers).move(self._some())

    def _slow_way(self) -> None:
        """Delay the data from one node to another for some time."""
        way = tuple(node.name for node in self.rng.sample(self.nodes, 2))
        self.hub.delays[way[0], way[1]] = (0.0, self.rng.choice((1.0, 4.0, 15.0)))
        self.loop.call_later(self.rng.choice((1.0, 5.0)), self.hub.delays.pop, way, None, context=NOBODY)

    def _slow_writes(self) -> None:
        """Delay the requests of one node to the servers for some time."""
        way = (self.rng.choice(self.nodes).name, "")
        self.hub.delays[way] = (0.0, self.rng.choice((0.3, 1.0, 4.0)))
        self.loop.call_later(self.rng.choice((1.0, 5.0)), self.hub.delays.pop, way, None, context=NOBODY)

    def _drop_client(self) -> None:
        if self.clients:
            self.rng.choice(self.clients).drop()

    def _kill_node(self) -> None:
        node = self._some()
        if node is not None:
            self.kill(node)

    def kill(self, node: SimulatedNode) -> None:
        self.note(f"kill {node.name}")
        self.kills += 1
        node.kill()
        self.loop.call_later(self.rng.choice((0.1, 1.0, 5.0, 15.0)), self._start, node, context=NOBODY)

    def _lose_disk(self) -> None:
        """Kill a node and delete its data, often while its batches are late at the others."""
        node = self._some()
        if node is None or not self._all_copied():
            return
        if self.rng.random() < 0.7:
            for other in self.nodes:
                way = (node.name, other.name)
                self.hub.delays[way] = (0.0, 0.9)
                self.loop.call_later(3.0, self.hub.delays.pop, way, None, context=NOBODY)
            self.loop.call_later(self.rng.uniform(0.3, 2.0), self._lose_it_now, node, context=NOBODY)
        else:
            self._lose_it_now(node)

    def _lose_it_now(self, node: SimulatedNode) -> None:
        """Kill the node and delete its data, but only if all copies are complete. Otherwise, its disk may have the only
        copy of some data."""
        if self._calm or not node.running or not self._all_copied():
            return
        self.note(f"{node.name} loses its disk")
        self.kills += 1
        self.disks_lost += 1
        node.kill()
        node.lose_disk()
        self.loop.call_later(self.rng.choice((0.1, 3.0, 8.0, 20.0, 60.0)), self._start, node, context=NOBODY)

    def _all_copied(self) -> bool:
        return all(each.running and each.copied for each in self.nodes)

    def replaced(self, node: SimulatedNode) -> None:
        """Restart a node, as its process would, after it has learned that another node runs in its place."""
        self.note(f"{node.name} was replaced")
        owner = node.life

        def again() -> None:
            if not owner.over:
                node.kill()
                self._start(node)

        self.loop.call_soon(again, context=NOBODY)

    def _evacuate(self) -> None:
        """Evacuate a node, for longer or shorter than its clients need to move."""
        node = self._some()
        if node is None:
            return
        owner = node.life
        self.note(f"evacuate {node.name}")
        self.loop.create_task(self._evacuated(node, owner), context=node.context.copy())

        def end() -> None:
            if not owner.over:
                node.context.copy().run(self._end_evacuation, node)

        self.loop.call_later(self.rng.choice((2.0, 8.0, 20.0)), end, context=NOBODY)

    async def _evacuated(self, node: SimulatedNode, owner: Life) -> None:
        try:
            await node.server.cluster.evacuate()
        except ChangeRefused as error:
            self.note(f"{node.name} is not evacuated: {error}")
        if self._calm and not owner.over:
            self._end_evacuation(node)

    def _end_evacuation(self, node: SimulatedNode) -> None:
        try:
            node.server.cluster.end_evacuation()
        except ChangeRefused:
            return
        self.note(f"{node.name} is evacuated no longer")

    def _force_out(self) -> None:
        """Stop or isolate a node, and remove it as an operator would."""
        node = self._some()
        if node is None or self.forcing is not None:
            return
        self.forcing = node
        if self.rng.random() < 0.6:
            self.note(f"kill {node.name} to force it out")
            self.kills += 1
            node.kill()
        else:
            self.hub.disconnect(node.name)
        self.loop.call_later(self.rng.uniform(10.5, 14.0), self._order_force_leave, node, context=NOBODY)

    def _order_force_leave(self, node: SimulatedNode) -> None:
        others = [each for each in self.nodes if each is not node and each.running]
        if others and not self._calm:
            other = self.rng.choice(others)
            self.loop.create_task(self._force_leave(node, other), context=other.context.copy())
        self.loop.call_later(self.rng.choice((0.1, 2.0, 6.0)), self._bring_back, node, context=NOBODY)

    async def _force_leave(self, node: SimulatedNode, other: SimulatedNode) -> None:
        self.note(f"force {node.name} out at {other.name}")
        self.sessions_end = self.forced_out = True
        try:
            await other.server.cluster.force_leave(node.name)
        except ChangeRefused as error:
            self.note(f"{node.name} stays: {error}")

    def _bring_back(self, node: SimulatedNode) -> None:
        self.hub.connect(node.name)
        self.forcing = None
        self._start(node)

    def _is_forced_out(self, node: SimulatedNode) -> bool:
        """Return whether the node was forced out with its present data."""
        entry = self.hub.buckets[MEMBERS].last.get(node_key(node.name))
        running = next((each.server.cluster for each in self.nodes if each.running), None)
        if entry is None or entry.value is None or not isinstance(running, NatsCluster):
            return False
        found = running.membership.records.read(entry)
        return found is not None and found[1].forced_out

    def start_refused(self, node: SimulatedNode, error: NatsRefused) -> None:
        """Handle the refusal of a node that was forced out while it started."""
        if self.sessions_end or REPLICAS in self.features:
            self.loop.call_later(0.5, self._start, node, context=NOBODY)
        else:
            self.wrong(f"{node.name} does not start: {error}")

    def _start_anew_if_forced_out(self) -> None:
        for node in self.nodes:
            if node.running and node.server.cluster.refused:
                self.note(f"kill {node.name}, which was forced out")
                node.kill()
                self._start(node)

    def _start(self, node: SimulatedNode) -> None:
        if not node.running and not node.starting and node is not self.forcing:
            if FORCED in self.features and self._is_forced_out(node):
                self.note(f"{node.name} has an empty disk")
                node.disk = SimulatedDisk(node.rng)
            self.note(f"start {node.name}")
            self.starting.append(self.loop.create_task(node.start()))

    def _kill_at_operation(self) -> None:
        """Kill a node before one of its next operations on NATS or its disk, so that it dies at any step."""
        node = self._some()
        if node is None:
            return
        about = self.rng.choice(("", "", "write", "write sessions", "request", "publish", "append"))
        left = self.rng.randint(1, 30 if about in ("", "publish", "append") else 5)
        owner = node.life

        def operation(what: str) -> None:
            nonlocal left
            if owner.over or not what.startswith(about):
                return
            left -= 1
            if left == 0:
                self.note(f"{node.name} dies at: {what}")
                self.kill(node)
                raise Killed

        self.note(f"{node.name} is to die at {about or 'any operation'} number {left}")
        node.nats.on_operation = operation
        node.on_append(lambda: operation("append"))

    def _partition(self) -> None:
        names = [node.name for node in self.nodes]
        if len(names) == 1:
            return
        self.rng.shuffle(names)
        cut = self.rng.randint(1, len(names) - 1)
        self.hub.partition(set(names[:cut]), set(names[cut:]), quorum=self.rng.choice((0, 1, None)))
        self.loop.call_later(self.rng.choice((0.5, 4.0, 14.0)), self.hub.heal, context=NOBODY)

    def _cut_node(self) -> None:
        node = self.rng.choice(self.nodes)
        self.hub.disconnect(node.name)
        self.loop.call_later(self.rng.choice((0.1, 2.0, 12.0)), self.hub.connect, node.name, context=NOBODY)

    def _lose_leader(self) -> None:
        self.hub.lose_leader()

    def _pause(self) -> None:
        self.hub.pause()
        self.loop.call_later(self.rng.choice((0.5, 3.0, 11.0)), self.hub.resume, context=NOBODY)

    def _stop_server(self) -> None:
        up = [number for number, is_up in enumerate(self.hub.up) if is_up]
        if len(up) > 1:
            number = self.rng.choice(up)
            self.hub.stop_server(number)
            self.loop.call_later(self.rng.choice((1.0, 6.0)), self.hub.start_server, number, context=NOBODY)

    def _change_some_row(self) -> None:
        node = self._some()
        if node is not None:
            self.change_row(node)

    # --------------------------------------------------------------- recovery

    async def _recover(self) -> None:
        """End all faults; everything must settle."""
        if self.violations:
            return
        self.note("all faults have ended")
        self._calm = True
        hub = self.hub
        hub.drop = hub.repeat = hub.disorder = hub.lose_request = hub.lose_answer = 0.0
        hub.delay = (0.0, 0.001)
        hub.delays.clear()
        hub.resume()
        hub.heal()
        for number in range(len(hub.up)):
            if not hub.up[number]:
                hub.start_server(number)
        for node in self.nodes:
            if node.running:
                node.nats.on_operation = lambda _: None
                node.on_append(lambda: None)
                node.context.copy().run(self._end_evacuation, node)
            hub.connect(node.name)
            self.forcing = None
            self._start(node)
        await self._until("every node sees the others again", self._all_running)
        if await self._until("all is quiet", self._quiet):
            await asyncio.sleep(3.0)
            await self._until("all is still quiet", self._quiet)

    async def _publish_once_more(self) -> None:
        """Publish after the faults: these messages must reach every subscriber once."""
        first = len(self.messages)
        for publisher in self.publishers:
            for topic in (*TOPICS, *(SHARED_TOPICS if self.groups else ())):
                for qos in (0, 1, 2):
                    publisher.publish(topic, qos)
        if await self._until("the last messages are acknowledged, and all is quiet", self._quiet):
            promises.check_last(self, self.messages[first:])

    def _quiet(self) -> bool:
        if not self._all_running() or not self._all_subscribed():
            return False
        if any(client.waiting or client.unacknowledged for client in self.clients):
            return False
        if any(self._busy(node) for node in self.nodes):
            return False
        if REPLICAS in self.features and not self._all_copied():
            return False
        # A key without a node waits for a node that has not seen it.
        if ENDS in self.features and not all(key.node for key in self.session_keys()):
            return False
        return promises.rows_agree(self) and promises.retained_agrees(self)

    def _busy(self, node: SimulatedNode) -> str:
        broker = node.server.broker
        if broker.durability is not None and broker.durability.commit.pending:
            return f"{broker.durability.commit.pending} records to store"
        for session in [*broker.sessions, *getattr(broker.sessions, "internal", {}).values()]:
            if session.queued or session.inflight or session.replays is not None:
                return f"{session!r} has {session.queued} queued and {len(session.inflight)} in flight"
        # A request that a fault lost is sent again after its timeout.
        for table, client_id, _ in node.server.tables.rows():
            if table == "handover":
                return f"the session of {client_id} is still coming"
        cluster = node.server.cluster
        assert isinstance(cluster, NatsCluster)
        for name, link in cluster.links.links.items():
            if not link.idle:
                return f"the link to {name} has something under way"
        for client in self.clients:
            if cluster.handover.leaves(client.name):
                return f"the session of {client.name} is still leaving"
        return ""

    def _state(self) -> str:
        """Return what has not settled."""
        found = []
        for node in self.nodes:
            if not node.running:
                found.append(f"{node.name} does not run")
                continue
            members = [f"{each.name} {each.status}" for each in node.server.cluster.members() if each.status != RUNNING]
            found += [f"{node.name}: {each}" for each in members]
            busy = self._busy(node)
            if busy:
                found.append(f"{node.name}: {busy}")
            if REPLICAS in self.features and not node.copied:
                found.append(f"{node.name} runs {[*node.server.hosted]}, or lacks copies: {node.copies}")
        for client in self.clients:
            if not client.online:
                found.append(f"{client.name} is not connected")
            elif client.filters and not client.subscribed:
                found.append(f"{client.name} has no SUBACK from {client.node and client.node.name}")
            elif client.waiting or client.unacknowledged:
                first = next(iter(client.unacknowledged.values()), None)
                found.append(f"{client.name} at {client.node and client.node.name} waits with {first}")
        if ENDS in self.features:
            found += [f"{key.client_id} has a key without a node" for key in self.session_keys() if not key.node]
        if not found:
            found = [f"{node.name} has {promises.rows_of(node)} {promises.retained_of(node)}" for node in self.nodes]
        return "; ".join(found[:6])
