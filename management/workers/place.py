"""The place of a worker among the processes of a broker, and its settings.

For example, with ``node.workers = 2``, the name ``taipan@127.0.0.1`` and the data directory ``data``:

| number | node | data | management and dashboard |
|---|---|---|---|
| 1 | ``taipan@127.0.0.1`` | ``data`` | here |
| 2 | ``taipan-2@127.0.0.1`` | ``data/worker-2`` | none, worker 1 answers for it |

Worker 1 is the node that the same configuration describes without workers. So a node becomes worker 1, or worker 1 a
node, without any change to its data."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

import msgspec

from taipan.broker.config import BrokerSettings, ClusterSettings, ListenerSettings, NodeSettings, parse_bind
from taipan.broker.core.memory import MIN_BUDGET, parse_limit
from taipan.broker.listener_kinds import LISTENER_KINDS
from taipan.broker.loop.control_groups import processors

from ..configuration.config import Settings
from ..data_dir import LOCK, NATS_DIRECTORY

VARIABLE: Final = "TAIPAN_WORKER"
"""The environment variable by which the supervisor tells a process its place."""
MOST: Final = 64
"""The largest number of workers."""
NATS_USER: Final = "taipan"
_DIRECTORY: Final = re.compile(r"worker-([1-9]\d{0,3})", re.ASCII)


class WorkerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """``number``: from 1. ``count``: number of processes that share the machine, including those that retire.
    ``nats_port``: port of the supervisor's NATS server on loopback, 0 if the configuration has ``[cluster]``.
    ``retires``: this worker accepts no clients, and ends as soon as it has given its sessions to the others."""

    number: int
    count: int
    nats_port: int = 0
    nats_password: str = ""
    retires: bool = False

    def as_text(self) -> str:
        """Return the value of the environment variable."""
        return msgspec.json.encode(self).decode()


def own_place() -> WorkerPlace | None:
    """Return the place of this process; ``None`` if no supervisor has started it."""
    text = os.environ.get(VARIABLE)
    return None if text is None else msgspec.json.decode(text, type=WorkerPlace)


def worker_number(place: WorkerPlace | None) -> int:
    """Return the number of this worker; 0 if this process is a node by itself."""
    return 0 if place is None else place.number


def wanted(settings: Settings) -> int:
    """Return the number of workers in ``node.workers``; ``auto``: the number of processors this process may use."""
    workers = settings.broker.node.workers
    return workers if isinstance(workers, int) else min(processors(), MOST)


def retiring(settings: Settings) -> list[int]:
    """Return the numbers of the workers that have data but are no longer needed."""
    data_dir = settings.broker.node.data_dir
    try:
        names = os.listdir(data_dir)
    except OSError:  # opening the directory reports why it cannot be used
        return []
    found = [match for name in names if (match := _DIRECTORY.fullmatch(name)) and _has_lock(data_dir, name)]
    return sorted(number for number in (int(match[1]) for match in found) if number > wanted(settings))


def _has_lock(data_dir: str, name: str) -> bool:
    """Return whether a worker has used the directory. A directory that cannot be read counts as used: its worker
    reports the problem."""
    try:
        os.lstat(os.path.join(data_dir, name, LOCK))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def directory(data_dir: str, number: int) -> str:
    """Return the data directory of a worker."""
    return data_dir if number == 1 else str(Path(data_dir) / f"worker-{number}")


def forget_nats(data_dir: str) -> None:
    """A node that runs without workers changes its data. Delete the copy of these data in the workers' NATS server, so
    that worker 1 does not read older data from there later. Raises OSError."""
    current = Path(data_dir) / NATS_DIRECTORY
    old = current.with_suffix(".old")
    if old.exists():
        shutil.rmtree(old)  # this was interrupted before
    if current.exists():
        current.rename(old)
        shutil.rmtree(old)


def node_name(name: str, number: int) -> str:
    """Return the node name of a worker."""
    first, at, host = name.partition("@")
    return name if number == 1 else f"{first}-{number}{at}{host}"


def faults(settings: Settings) -> list[str]:
    """Return why several processes cannot be one broker with these settings on this machine, one line for each."""
    if wanted(settings) == 1 and not retiring(settings):
        return []
    if sys.platform != "linux":
        return ["node.workers: more than one worker requires Linux, which gives each connection to one of them"]
    if settings.broker.cluster is None:
        from .nats_program import NoNatsServer, nats_program  # imported here: only workers need it

        try:
            nats_program()
        except NoNatsServer as error:
            return [f"node.workers: {error}"]
    return [
        f"listeners.{index}.bind {each.bind}: node.workers requires a fixed port; with 0, each worker gets another"
        for index, each in enumerate(settings.broker.listeners)
        if _is_shared(each) and parse_bind(each.bind)[1] == 0
    ]


def settings_at(place: WorkerPlace, settings: Settings) -> Settings:
    """Return the settings of the worker at ``place``."""
    broker = settings.broker
    listeners = [
        (_listener(place, listener), zone)
        for listener, zone in zip(broker.listeners, broker.listener_zones, strict=True)
        if not place.retires and (place.number == 1 or _is_shared(listener))
    ]
    worker = msgspec.structs.replace(
        broker,
        node=NodeSettings(
            name=node_name(broker.node.name, place.number),
            data_dir=directory(broker.node.data_dir, place.number),
            workers=broker.node.workers,
        ),
        listeners=tuple(listener for listener, _ in listeners),
        listener_zones=tuple(zone for _, zone in listeners),
        limits=msgspec.structs.replace(broker.limits, memory=_part(broker.limits.memory, place.count)),
        access=msgspec.structs.replace(broker.access, hash_threads=_threads(broker, place.count)),
        cluster=_cluster(place, broker.cluster),
    )
    if place.number == 1:
        return msgspec.structs.replace(settings, broker=worker)
    return msgspec.structs.replace(
        settings,
        broker=worker,
        management=msgspec.structs.replace(settings.management, enabled=False),
        dashboard=msgspec.structs.replace(settings.dashboard, enabled=False),
    )


def _is_shared(listener: ListenerSettings) -> bool:
    """Return whether every worker listens there. The datagrams of a client must all reach the same process, and a Unix
    socket belongs to one process."""
    kind = LISTENER_KINDS[listener.type]
    return not (kind.local or kind.datagram)


def _listener(place: WorkerPlace, listener: ListenerSettings) -> ListenerSettings:
    if not _is_shared(listener):
        return listener
    return msgspec.structs.replace(
        listener,
        reuse_port=True,
        max_connections=_share(listener.max_connections, place.count),
        accept_rate=_share(listener.accept_rate, place.count),
    )


def _share(limit: int, count: int) -> int:
    """Return the part of a limit for each of ``count`` processes; 0 remains 0."""
    return -(-limit // count)


def _part(memory: int | str, count: int) -> int:
    return max(MIN_BUDGET, parse_limit(memory) // count)


def _threads(broker: BrokerSettings, count: int) -> int:
    return broker.access.hash_threads or max(1, processors() // count)


def _cluster(place: WorkerPlace, cluster: ClusterSettings | None) -> ClusterSettings | None:
    if cluster is not None:
        return cluster
    return ClusterSettings(
        servers=(f"nats://127.0.0.1:{place.nats_port}",),
        user=NATS_USER,
        password=place.nats_password,
        strict_subscribe=True,  # after SUBACK, messages from every worker arrive, as with a single node
    )
