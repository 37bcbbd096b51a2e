"""``taipan doctor [FILE]``: checks whether machine, files and ports meet a node's requirements. Nothing is changed."""

import argparse
import asyncio
import contextlib
import errno
import json
import os
import pwd
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from taipan.broker.cluster.replicas.records import DIRECTORY
from taipan.broker.config import BrokerSettings, parse_bind
from taipan.broker.loop.socket_state import IN_USE, LEFT_OVER, NO_SOCKET, state_of
from taipan.broker.observability.log_text import one_line
from taipan.broker.transport.binding import try_to_bind

from .. import configuration_check
from ..certificate_expiry import WARN_BEFORE
from ..configuration.config import DEFAULT_ZONE, Settings, read
from ..configuration.config_document import ConfigError
from ..configuration.known_secrets import is_known
from ..configuration.served_certificates import ServedCertificate, date_text, served_certificates
from ..data_dir import DATABASE, DataDirError, Holder, holder, is_own, open_to_others
from . import machine_checks
from .finding import Finding
from .set_option import add_set_option

_LISTENS: Final = "0A"
"""The state of a socket in /proc/net/tcp."""
_UNCONNECTED: Final = "07"
"""The state in /proc/net/udp of a socket that serves any address."""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="check the configuration, the machine, files and ports, and suggest fixes",
        description="Prints one line per check: ok, warning or error. Changes nothing. "
        "Exits with status 1 if there is an error.",
    )  # fmt: skip
    parser.add_argument("file", metavar="FILE", nargs="?", help="configuration file; can also be given with --config")
    add_set_option(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if one of them is an error. Raises ConfigError for two files."""
    if arguments.file is not None and arguments.config is not None:
        raise ConfigError("give FILE or --config, not both")
    findings = []
    for each in examined(arguments.file or arguments.config, arguments.set + arguments.more):
        findings.append(each)
        if not arguments.json:
            advice = f"; {each.advice}" if each.advice else ""
            print(f"{each.level + ':':<9}{each.check}: {one_line(each.found + advice)}", flush=True)
    if arguments.json:
        print(json.dumps([each._asdict() for each in findings]))
    return int(any(each.level == "error" for each in findings))


def examined(file: str | None, overrides: list[str]) -> Iterator[Finding]:
    """Yield all findings, one after another. ``file``: ``None`` for the defaults."""
    started = (time.time(), time.monotonic())
    try:
        settings = read(file, overrides).settings
    except ConfigError as error:
        for line in error.lines:
            yield Finding("error", "configuration", line, "the other checks require a valid configuration")
        return
    wrong = configuration_check.faults(settings)
    for line in wrong:
        yield Finding("error", "configuration", line, "correct the setting, or the file or address in it")
    if not wrong:
        yield Finding("ok", "configuration", file or "the defaults, on loopback")
    yield from unused_zones(settings)
    yield from default_secrets(settings)
    yield from certificates(served_certificates(settings), time.time())
    data = Path(settings.broker.node.data_dir).absolute()
    held = None
    try:
        held = holder(data) if data.is_dir() else None
    except OSError as error:
        yield Finding("error", "lock", f"{data}: {error.strerror}", "run this as the node's user")
    else:
        yield _of_lock(held, file)
    yield from data_directory(data)
    process = held.process if held is not None else 0
    yield machine_checks.bytecode()
    yield machine_checks.open_files(settings.broker.listeners, process)
    waiting = machine_checks.backlog(settings.broker.listeners)
    if waiting is not None:
        yield waiting
    yield from machine_checks.disk(_existing(data), settings.broker.durability.level == "disk")
    yield from copies(settings.broker, _existing(data), data)
    yield from ports(settings, process)
    yield from socket_files(settings, process)
    yield from machine_checks.clock(started, data / DATABASE)


def copies(settings: BrokerSettings, existing: Path, data: Path) -> Iterator[Finding]:
    """Check whether other nodes can have copies of this node's data, and whether this one has room for theirs.
    ``existing``: the data directory, or the closest directory above it."""
    cluster = settings.cluster
    if cluster is None or not cluster.replicas:
        try:
            held = machine_checks.bytes_below(data / DIRECTORY)
        except OSError:
            return  # see data_dir
        if held:
            found = f"{data / DIRECTORY} has copies of other nodes' data, {held >> 20} MiB"
            if cluster is None:
                advice = "they are used only with [cluster]: set it, or delete the directory if no node needs it"
                yield Finding("warning", "replicas", found, advice)
            else:
                yield Finding("ok", "replicas", f"{found}, and keeps them until other nodes have them")
        return
    try:
        from taipan.broker.cluster.nats.interface import NatsRefused  # imported here: only [cluster] needs nkeys
        from taipan.broker.cluster.replicas.prospects import prospects
    except ImportError:
        return  # reported as a fault of the configuration
    try:
        for each in asyncio.run(prospects(cluster, settings.node.name)):
            yield Finding(each.level, "replicas", each.found, each.advice)
    except NatsRefused as error:
        yield Finding("error", "replicas", str(error), "start the NATS servers, or correct the setting")
    yield from machine_checks.space_for_copies(existing, data, data / DIRECTORY, cluster.replicas)


def unused_zones(settings: Settings) -> Iterator[Finding]:
    """Find zones that have no effect."""
    used = {DEFAULT_ZONE, *(listener.zone for listener in settings.broker.listeners)}
    for name in settings.broker.zones:
        if name not in used:
            advice = f'set zone = "{name}" in a listener, or write the keys in [zones.{DEFAULT_ZONE}]'
            yield Finding("warning", "zones", f"no listener uses the zone {name}", advice)


def default_secrets(settings: Settings) -> Iterator[Finding]:
    """Find applications of the configuration with a published secret."""
    for index, app in enumerate(settings.management.apps):
        if is_known(app.secret):
            found = f"management.apps.{index}.secret: application {app.id} has EMQX's published default"
            yield Finding("warning", "secrets", found, "set a secret of your own, then reload (SIGHUP)")


def _of_lock(held: Holder | None, file: str | None) -> Finding:
    if held is None:
        return Finding("ok", "lock", "no node uses the data directory")
    found = f"a node runs: process {held.process or 'unknown'}"
    named = os.path.realpath(file) if file is not None else ""
    if held.config != named:
        found += f", with {held.config or 'no configuration file'}"
        return Finding("warning", "lock", found, "specify the configuration that the node runs with")
    return Finding("ok", "lock", found)


def certificates(served: list[ServedCertificate], now: float) -> Iterator[Finding]:
    """Show the expiry and the names of certificates. Expired ones are already reported as faults of the
    configuration."""
    for each in served:
        if each.fault(now) is not None:
            continue
        found = f"{each.setting}: {each.file} until {date_text(each.ends)}, for {', '.join(each.names) or 'no name'}"
        asked = _asked_name(each.setting)
        if each.ends - now <= WARN_BEFORE:
            days = (each.ends - now) / 86_400
            yield Finding("warning", "certificate", found, f"renew it within {days:.0f} days, then reload (SIGHUP)")
        elif not each.names:
            yield Finding(
                "warning", "certificate", found, "create a certificate with a subjectAltName: clients require it"
            )
        elif asked and not _covers(each.names, asked):
            yield Finding("warning", "certificate", found, f"create a certificate for {asked}")
        else:
            yield Finding("ok", "certificate", found)


def _asked_name(setting: str) -> str:
    """Return the name in ``listeners.0.tls.server_names.NAME.certfile``; empty for other certificates."""
    return setting.partition(".server_names.")[2].removesuffix(".certfile").lower()


def _covers(names: tuple[str, ...], asked: str) -> bool:
    held = {name.lower() for name in names}
    return asked in held or "*." + asked.partition(".")[2] in held


def _existing(directory: Path) -> Path:
    """Return the directory, or the closest existing directory above it."""
    for each in (directory, *directory.parents):
        with contextlib.suppress(OSError):  # its parent directory cannot be read
            if each.is_dir():
                return each
    return Path("/")


def data_directory(directory: Path) -> Iterator[Finding]:
    """Check the owner and the permissions of the directory."""
    try:
        there, is_directory = directory.exists(), directory.is_dir()
    except OSError as error:
        yield Finding("error", "data_dir", f"{directory}: {error.strerror}", "run this as the node's user")
        return
    if there and not is_directory:
        yield Finding("error", "data_dir", f"{directory} is not a directory", "set node.data_dir")
        return
    if not there:
        above = _existing(directory)
        if os.access(above, os.W_OK | os.X_OK):
            yield Finding("ok", "data_dir", f"{directory} does not exist yet; the first start creates it")
        else:
            what = f"{directory} does not exist, and {above} cannot be written to"
            yield Finding(
                "error", "data_dir", what, "run this as the node's user, or create the directory for that user"
            )
        return
    try:
        found = directory.stat()
        own = is_own(directory)
        others = [] if not own else list(open_to_others(directory))
    except DataDirError as error:
        yield Finding("error", "data_dir", str(error), "set node.data_dir")
        return
    except OSError as error:
        yield Finding("error", "data_dir", f"{error.filename}: {error.strerror}", "run this as the node's user")
        return
    mode = stat.S_IMODE(found.st_mode)
    what = f"{directory} belongs to {_user(found.st_uid)}, mode {mode:04o}"
    if os.geteuid() not in (0, found.st_uid):
        yield Finding("error", "data_dir", what, f"run node and doctor as {_user(found.st_uid)}, or chown it")
    elif others:
        path, mode = others[0]
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        open_ones = f"{what}; others may use {path} (mode {stat.S_IMODE(mode):04o}){more}"
        yield Finding("warning", "data_dir", open_ones, "the next start removes these permissions")
    else:
        yield Finding("ok", "data_dir", what)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def ports(settings: Settings, process: int) -> Iterator[Finding]:
    """Check whether each address is free or used by the node. ``process``: the running node, 0 if there is none."""
    shared = {each.bind for each in settings.broker.listeners if each.reuse_port}
    for setting, bind in configuration_check.binds(settings).items():
        yield _port(setting, bind, bind in shared, process)
    for setting, bind in configuration_check.datagram_binds(settings).items():
        yield _port(setting, bind, bind in shared, process, datagrams=True)


def socket_files(settings: Settings, process: int) -> Iterator[Finding]:
    """Check each Unix socket in the same way."""
    for setting, path in configuration_check.socket_paths(settings).items():
        where = f"{setting} {path}"
        if process and _has_socket(process, path):
            yield Finding("ok", "socket", f"{where} is the node's")
            continue
        try:
            found = state_of(path)
        except OSError as error:
            yield Finding("error", "socket", f"{where}: {error.strerror}", "let the node use the directory")
            continue
        if not Path(path).parent.is_dir():
            yield Finding("error", "socket", f"{where}: there is no such directory", "make it, and let the node use it")
        elif found == IN_USE:
            yield Finding(
                "error", "socket", f"{where} is used by another process", f"ss -lxp src {path} shows which process"
            )
        elif found == NO_SOCKET:
            yield Finding(
                "error", "socket", f"{where} is a file that is not a socket", "name another path, or remove it"
            )
        elif process:
            what = "the node does not listen there: restart it or see its log"
            yield Finding("warning", "socket", f"{where} is {found}", what)
        else:
            then = ": the next start replaces it" if found == LEFT_OVER else ""
            yield Finding("ok", "socket", f"{where} is {found}{then}")


def _port(setting: str, bind: str, shared: bool, process: int, datagrams: bool = False) -> Finding:
    host, port = parse_bind(bind)
    where = f"{setting} {bind}"
    if port and process and _listens(process, port, datagrams):
        return Finding("ok", "port", f"{where} is the node's")
    try:
        try_to_bind(host, port, shared, socket.SOCK_DGRAM if datagrams else socket.SOCK_STREAM)
    except socket.gaierror as error:
        return Finding("error", "port", f"{where}: {error.strerror}", "name an address of this machine")
    except OSError as error:
        return _taken(setting, bind, process, error, datagrams)
    if process and port:
        return Finding(
            "warning", "port", f"{where} is free", "the node does not listen there: restart it or see its log"
        )
    return Finding("ok", "port", f"{where} is free")


def _taken(setting: str, bind: str, process: int, error: OSError, datagrams: bool) -> Finding:
    where = f"{setting} {bind}"
    _, port = parse_bind(bind)
    if error.errno == errno.EADDRINUSE:
        if process and not os.access(f"/proc/{process}/fd", os.R_OK):
            return Finding("warning", "port", f"{where} is in use", "run this as the node's user to see which process")
        shows = f"ss -l{'u' if datagrams else 't'}np 'sport = :{port}' shows which process"
        advice = f"{shows}; {configuration_check.other_address(setting, bind)}"
        return Finding("error", "port", f"{where} is in use by another process", advice)
    if error.errno in (errno.EACCES, errno.EPERM):
        advice = "AmbientCapabilities=CAP_NET_BIND_SERVICE of the service, or a port from 1024 on"
        return Finding("error", "port", f"{where}: {error.strerror}", advice)
    return Finding("error", "port", f"{where}: {error.strerror}", "name an address of this machine")


def _listens(process: int, port: int, datagrams: bool) -> bool:
    """Return whether the process listens on this port; False if this cannot be determined."""
    protocol, state = ("udp", _UNCONNECTED) if datagrams else ("tcp", _LISTENS)
    tables = [Path(f"/proc/{process}/net/{name}") for name in (protocol, f"{protocol}6")]
    return _owns(process, {inode for table in tables for inode in _listening(table, port, state)})


def _has_socket(process: int, path: str) -> bool:
    """Return whether a socket of the process is bound to this path; False if this cannot be determined."""
    try:
        lines = [line.split(maxsplit=7) for line in Path(f"/proc/{process}/net/unix").read_text().splitlines()[1:]]
    except OSError:
        return False
    return _owns(process, {f"socket:[{line[6]}]" for line in lines if line[7:] == [path]})


def _owns(process: int, inodes: set[str]) -> bool:
    """Return whether one of these sockets belongs to the process."""
    try:
        with os.scandir(f"/proc/{process}/fd") as found:
            return any(_target(each) in inodes for each in found)
    except OSError:
        return False


def _target(link: "os.DirEntry[str]") -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def _listening(table: Path, port: int, state: str) -> Iterator[str]:
    try:
        lines = table.read_text("ascii").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        words = line.split()
        if words[3] == state and int(words[1].rpartition(":")[2], 16) == port:
            yield f"socket:[{words[9]}]"
