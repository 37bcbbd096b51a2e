"""Checks of ``taipan doctor`` on the machine: limits, clock, and the disk of the data directory."""

import contextlib
import ctypes
import os
import resource
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from taipan.broker.config import ListenerSettings

from .finding import Finding

_RESERVE: Final = 100
"""Descriptors that a node needs without clients, with a reserve."""
_FEW_FILES: Final = 10_000
_SOMAXCONN: Final = Path("/proc/sys/net/core/somaxconn")
_TIME_ERROR: Final = 5
_TIMEX_SIZE: Final = 512
"""In bytes; ``struct timex`` is smaller on all systems."""
_JUMP: Final = 0.1
_FLUSHES: Final = 100
_FLUSH_SECONDS: Final = 2.0
_FLUSH_SIZE: Final = 4096
_SLOW_FLUSH: Final = 0.02
_SLOWEST_FLUSH: Final = 0.25
_FREE: Final = 1 << 30
_FREE_PART: Final = 0.1
_FREE_NOTHING: Final = 64 << 20
_IN_MEMORY: Final = ("tmpfs", "ramfs")
_OVER_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.glusterfs", "ceph")


def bytecode() -> Finding:
    """Return whether Python finds the modules of this program compiled to bytecode. Otherwise each start compiles them,
    which takes more processor time than the rest of the start."""
    modules = [each for name, each in sys.modules.items() if name.partition(".")[0] == "taipan"]
    specs = [each.__spec__ for each in modules if each.__spec__ is not None]
    places = [(spec.origin, spec.cached) for spec in specs if spec.origin is not None and spec.cached is not None]
    missing = [origin for origin, cached in places if not os.path.exists(cached)]
    if not missing:
        return Finding("ok", "bytecode", f"present for all of {len(places)} modules")
    found = f"missing for {len(missing)} of {len(places)} modules: each start compiles them, which takes 1 to 2 s"
    package = os.path.dirname(str(sys.modules["taipan"].__file__))
    linked = [each.path for each in os.scandir(package) if each.is_symlink() and each.is_dir()]
    command = shlex.join([sys.executable, "-m", "compileall", "-q", package, *sorted(linked)])
    return Finding("warning", "bytecode", found, f"as the owner of the files: {command}")


def open_files(listeners: Sequence[ListenerSettings], process: int) -> Finding:
    """``process``: the running node, 0 if there is none."""
    limit = _limit_of(process)
    where = f"of process {process}" if limit is not None else "here"
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    raise_it = "raise LimitNOFILE= of the service, or ulimit -Hn before you start the node"
    if limit == resource.RLIM_INFINITY:
        return Finding("ok", "open_files", f"unlimited {where}")
    clients = max(0, limit - _RESERVE)
    found = f"{limit} {where}: about {clients} clients"
    no_limit = ListenerSettings(name="", type="tcp", bind="").max_connections
    set_limits = [each.max_connections for each in listeners if each.max_connections < no_limit]
    if sum(set_limits) > clients:
        return Finding("warning", "open_files", f"{found}, max_connections is {sum(set_limits)} in sum", raise_it)
    if clients < _FEW_FILES and len(set_limits) < len(listeners):
        return Finding("warning", "open_files", found, raise_it)
    return Finding("ok", "open_files", found)


def _limit_of(process: int) -> int | None:
    if not process:
        return None
    try:
        lines = Path(f"/proc/{process}/limits").read_text("ascii").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        if line.startswith("Max open files"):
            hard = line.split()[4]
            return resource.RLIM_INFINITY if hard == "unlimited" else int(hard)
    return None


def backlog(listeners: Sequence[ListenerSettings]) -> Finding | None:
    """Check the number of connections that may wait for accept: the system reduces the value that a listener
    requests."""
    try:
        most = int(_SOMAXCONN.read_text("ascii"))
    except (OSError, ValueError):
        return None
    wanted = max((each.backlog for each in listeners), default=0)
    found = f"net.core.somaxconn is {most}, listeners ask for {wanted}"
    if most < wanted:
        return Finding("warning", "backlog", found, f"sysctl -w net.core.somaxconn={wanted}")
    return Finding("ok", "backlog", found)


def clock(started: tuple[float, float], store: Path) -> Iterator[Finding]:
    """``started``: wall clock and monotonic clock at an earlier time. ``store``: the file that a node wrote last."""
    jump = (time.time() - started[0]) - (time.monotonic() - started[1])
    if abs(jump) > _JUMP:
        yield Finding("warning", "clock", f"was set by {jump:+.3f} seconds while this ran", "find out who sets it")
    try:
        ahead = max(each.stat().st_mtime for each in (store, store.with_name(store.name + "-wal")) if each.exists())
    except (OSError, ValueError):
        ahead = 0.0
    behind = ahead - time.time()
    if behind > 1.0:
        what = f"is {behind:.0f} seconds before the last write to {store.name}"
        yield Finding("error", "clock", what, "set the clock: messages and sessions expire by it")
    synchronised = _synchronised()
    if synchronised is None:
        yield Finding("ok", "clock", "unknown here whether it is synchronised")
    elif synchronised:
        yield Finding("ok", "clock", "synchronised")
    else:
        yield Finding("warning", "clock", "nothing synchronises it", "start systemd-timesyncd, chrony or ntpd")


def _synchronised() -> bool | None:
    """Return the state of the kernel's clock (adjtimex, which changes nothing without a request); ``None``: unknown."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = int(adjtimex(ctypes.create_string_buffer(_TIMEX_SIZE)))
    return None if state < 0 else state != _TIME_ERROR


def disk(directory: Path, durable: bool) -> Iterator[Finding]:
    """``directory``: the data directory, or where it would be created. ``durable``: whether acknowledgements wait for
    the disk."""
    kind = _file_system(directory)
    if durable and kind in _IN_MEMORY:
        what = f"{directory} is in memory ({kind}): all data is lost when the machine stops"
        yield Finding("warning", "disk", what, "put node.data_dir on a disk")
    elif durable and kind in _OVER_NETWORK:
        what = f"{directory} is on a network file system ({kind}): locks and flushes cannot be relied on"
        yield Finding("warning", "disk", what, "put node.data_dir on a disk of this machine")
    yield _free_space(directory)
    try:
        times = sorted(_flushes(directory))
    except OSError as error:
        yield Finding("error", "flush", f"{directory}: {error.strerror}", "let the node's user write there")
        return
    middle, worst = times[len(times) // 2], times[-1]
    found = f"p50 {_ms(middle)}, worst of {len(times)} {_ms(worst)} in {directory}"
    if durable and (middle > _SLOW_FLUSH or worst > _SLOWEST_FLUSH):
        advice = "every acknowledgement of QoS 1 and 2 waits for a flush: put node.data_dir on a faster disk"
        yield Finding("warning", "flush", found, advice)
    else:
        yield Finding("ok", "flush", found)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def _free_space(directory: Path) -> Finding:
    try:
        total, _, free = shutil.disk_usage(directory)
    except OSError as error:
        return Finding("error", "space", f"{directory}: {error.strerror}", "find out why it cannot be read")
    found = f"{free >> 20} of {total >> 20} MiB free in {directory}"
    if free < _FREE_NOTHING:
        return Finding(
            "error", "space", found, "free some space: a full disk stops every acknowledgement of QoS 1 and 2"
        )
    if free < min(_FREE, total * _FREE_PART):
        return Finding("warning", "space", found, "free some space, or move node.data_dir")
    return Finding("ok", "space", found)


def bytes_below(directory: Path) -> int:
    """Return the size of all files in a directory; 0: it does not exist. Raises OSError."""
    if not directory.exists():
        return 0
    return sum(each.stat().st_size for each in directory.rglob("*") if each.is_file())


def space_for_copies(existing: Path, data: Path, copies: Path, replicas: int) -> Iterator[Finding]:
    """Check the space for the copies of other nodes, which are assumed to be as large as this node's own store. The
    number of nodes whose copies one has is ``replicas`` on average. ``existing``: a directory of that file system."""
    try:
        own = sum(each.stat().st_size for each in data.glob("taipan.db*"))
        held = bytes_below(copies)
        free = shutil.disk_usage(existing).free
    except OSError:
        return  # reported by other checks
    found = f"copies of other nodes use {held >> 20} MiB, the own store {own >> 20} MiB, {free >> 20} MiB are free"
    if free < replicas * own - held:
        advice = "free some space, or move node.data_dir: copies need about as much as the store, for each replica"
        yield Finding("warning", "replicas", found, advice)
    else:
        yield Finding("ok", "replicas", found)


def _flushes(directory: Path) -> list[float]:
    """Return the seconds that each flush took, for at most 100 flushes and two seconds. The file has no name, or loses
    it immediately. Raises OSError."""
    flush = getattr(os, "fdatasync", os.fsync)
    times: list[float] = []
    with contextlib.closing(tempfile.TemporaryFile(dir=directory)) as file:
        number = file.fileno()
        until = time.monotonic() + _FLUSH_SECONDS
        while len(times) < _FLUSHES and (not times or time.monotonic() < until):
            os.write(number, bytes(_FLUSH_SIZE))
            begun = time.perf_counter()
            flush(number)
            times.append(time.perf_counter() - begun)
    return times


def _file_system(directory: Path) -> str:
    """Return the type of the file system as the system names it; empty if unknown."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    path = os.path.realpath(directory)
    best, kind = "", ""
    for line in lines:
        before, dash, after = line.partition(" - ")
        words = before.split()
        if not dash or len(words) < 5:
            continue
        point = words[4].replace("\\040", " ")
        if len(point) >= len(best) and (path == point or path.startswith(point.rstrip("/") + "/")):
            best, kind = point, after.split()[0]
    return kind
