"""Nodes: version, uptime and resource usage of each."""

import os
import platform
import resource
import threading
from pathlib import Path
from typing import Final

import msgspec

from taipan.broker.core.cluster import RUNNING, SUSPECT, Member
from taipan.broker.observability.sys_topics import SYSDESCR, uptime_text
from taipan.broker.server import Server

from .node_calls import NodeCalls
from .times import local_text

_STATUS: Final = Path("/proc/self/status")
_MEMORY: Final = Path("/proc/meminfo")
_PID_MAX: Final = Path("/proc/sys/kernel/pid_max")


class BrokerRecord(msgspec.Struct):
    """Specification, Broker node record."""

    node: str
    node_status: str
    otp_release: str
    sysdescr: str
    uptime: str
    version: str
    datetime: str


class FollowerRecord(msgspec.Struct):
    """A node that has, or is to have, a copy of another node's data. ``state``: as ``CopyStatus.state``. ``since``: the
    local time of the last change of the state; ``None``: unknown, because the node with the original is stopped."""

    follower: str
    state: str
    behind_batches: int
    behind_bytes: int
    since: str | None


class HostedRecord(msgspec.Struct):
    """A lost node that runs from its copy. ``since``: local time. ``owed``: what keeps it from leaving, by kind."""

    node: str
    since: str
    owed: dict[str, int]


class NodeRecord(msgspec.Struct, omit_defaults=True):
    """Specification, Node status record. ``hosted_by``: the node that runs this lost one from its copy, and
    whose process has this memory and these threads. ``replicas``: the copies of this node's data, ``None``
    without ``cluster.replicas``; ``hosts``: the lost nodes that it runs from theirs."""

    node: str
    node_status: str
    otp_release: str
    version: str
    uptime: str
    connections: int
    live_connections: int
    load1: str
    load5: str
    load15: str
    max_fds: int
    memory_total: str | int
    memory_used: str | int
    process_available: int
    process_used: int
    hosted_by: str = ""
    replicas: list[FollowerRecord] | None = None
    hosts: list[HostedRecord] = []


class Nodes:
    """This node, and the other nodes of its cluster."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        self._started_at = server.clock.now()
        self.name = server.settings.node.name
        calls.serve(self.broker, self.status)

    async def brokers(self) -> list[BrokerRecord]:
        """Return a broker node record of each member. The record of a node that does not answer contains what this node
        knows."""
        found = dict((await self._calls.everywhere(self.broker)).found)
        return [found.get(member.name) or self._silent_broker(member) for member in self._calls.members()]

    async def statuses(self) -> list[NodeRecord]:
        """Return a node status record of each member, as ``brokers`` does."""
        found = dict((await self._calls.everywhere(self.status, memory_text=True)).found)
        return [found.get(member.name) or self._silent_node(member) for member in self._calls.members()]

    @property
    def uptime(self) -> str:
        return uptime_text(int(self._server.clock.now() - self._started_at))

    def broker(self) -> BrokerRecord:
        """Return the broker node record. ``otp_release`` is the release of the runtime: Python and the event loop."""
        return BrokerRecord(
            node=self.name,
            node_status=RUNNING,
            otp_release=runtime_release(),
            sysdescr=SYSDESCR,
            uptime=self.uptime,
            version=self._server.version,
            datetime=local_text(self._server.clock.wall()),
        )

    def status(self, memory_text: bool) -> NodeRecord:
        """Return the node status record.

        ``memory_text``: memory with a unit, as in the list; otherwise in bytes, as for a single node. ``process_used``
        is the number of threads of this process, ``process_available`` the number that the system allows."""
        total, used = memory_total(), memory_used()
        load1, load5, load15 = os.getloadavg()
        return NodeRecord(
            node=self.name,
            node_status=RUNNING,
            otp_release=runtime_release(),
            version=self._server.version,
            uptime=self.uptime,
            connections=len(self._server.context.channels),
            live_connections=len(self._server.connections),
            load1=f"{load1:.2f}",
            load5=f"{load5:.2f}",
            load15=f"{load15:.2f}",
            max_fds=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            memory_total=size_text(total) if memory_text else total,
            memory_used=size_text(used) if memory_text else used,
            process_available=threads_allowed(),
            process_used=threading.active_count(),
            hosted_by=self._server.hosted_by,
            replicas=self._copies_of(self.name),
            hosts=[
                HostedRecord(each.name, local_text(each.since), each.owed()) for each in self._server.hosted.values()
            ],
        )

    def _copies_of(self, node: str) -> list[FollowerRecord] | None:
        """Return the copies of a node's data that this node knows; ``None``: there are none to be had."""
        cluster = self._server.settings.cluster
        if cluster is None or not cluster.replicas:
            return None
        now = self._server.clock.wall()
        return [
            FollowerRecord(
                each.copy,
                each.state,
                each.batches,
                each.bytes,
                local_text(now - each.seconds) if node == self.name else None,
            )
            for each in self._server.cluster.copies_of_data()
            if each.node == node
        ]

    def _silent_broker(self, member: Member) -> BrokerRecord:
        return BrokerRecord(
            node=member.name,
            node_status=_status(member),
            otp_release="",
            sysdescr=SYSDESCR,
            uptime=uptime_text(0),
            version=member.version,
            datetime=local_text(self._server.clock.wall()),
        )

    def _silent_node(self, member: Member) -> NodeRecord:
        return NodeRecord(
            node=member.name,
            node_status=_status(member),
            otp_release="",
            version=member.version,
            uptime=uptime_text(0),
            connections=0,
            live_connections=0,
            load1="0.00",
            load5="0.00",
            load15="0.00",
            max_fds=0,
            memory_total=0,
            memory_used=0,
            process_available=0,
            process_used=0,
            hosted_by=member.hosted_by,
            replicas=self._copies_of(member.name),
        )


def _status(member: Member) -> str:
    """Return the status of a node that did not answer: it may be running, but nothing confirms it."""
    return SUSPECT if member.status == RUNNING else member.status


def runtime_release() -> str:
    return f"{platform.python_implementation()}/{platform.python_version()}"


def size_text(size: int) -> str | int:
    """Return ``1.50M``: two decimals and the unit; up to 1024 the number itself."""
    for unit, least in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size > least:
            return f"{size / least:.2f}{unit}"
    return size


def memory_used() -> int:
    """Return how many bytes of memory this process uses."""
    return _kilobytes(_STATUS, "VmRSS") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_total() -> int:
    """Return how many bytes of memory this machine has."""
    return _kilobytes(_MEMORY, "MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def threads_allowed() -> int:
    """Return how many threads or processes the system allows this process to have."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    try:
        most = int(_PID_MAX.read_text())
    except (OSError, ValueError):
        most = 32_768
    return most if soft == resource.RLIM_INFINITY else min(soft, most)


def _kilobytes(file: Path, key: str) -> int:
    try:
        for line in file.read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0
