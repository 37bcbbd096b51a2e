"""Traces: the activity of a client, a topic or an address, written to a separate file for as long as an operator wants.

While no trace is running, no hooks are used. Lines are collected and written once a second; the size of a file is
limited."""

import logging
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import msgspec

from ..core.hooks import C, HookPoint, Hooks
from ..mqtt.message import Message, Publisher
from ..mqtt.packets import Properties
from ..mqtt.topics import matches
from ..observability.log_text import shorten
from ..persistence.tables import Tables
from ..session.client_info import ClientInfo, ip_address_of
from ..session.session import Session
from ..session.subscription import Subscription

logger = logging.getLogger(__name__)

Kind = Literal["clientid", "topic", "ip_address"]

MAX_TRACES: Final = 30
"""Maximum number of traces, as in EMQX."""
MAX_BYTES: Final = 16_777_216
"""Maximum size of a trace's file; later lines are left out, and the last line says so."""
_MAX_WAITING: Final = 1_048_576
_PAYLOAD: Final = 1024
_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,255}", re.ASCII)


class TraceError(ValueError):
    """A trace that cannot be created. ``exists``: because an equal one exists."""

    def __init__(self, text: str, exists: bool = False) -> None:
        super().__init__(text)
        self.exists = exists


class Trace(msgspec.Struct, array_like=True, frozen=True):
    """The condition of a trace. ``start_at``, ``end_at``: Unix seconds. ``enabled``: not stopped by an operator."""

    name: str
    kind: Kind
    filter: str
    start_at: float
    end_at: float
    enabled: bool = True

    def status(self, now: float) -> str:
        """``waiting``, ``running`` or ``stopped``."""
        if not self.enabled or now >= self.end_at:
            return "stopped"
        return "waiting" if now < self.start_at else "running"


class _File:
    """The file of one running trace."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []
        self.waiting = 0
        self.size = path.stat().st_size if path.exists() else 0
        self.full = self.size >= MAX_BYTES

    def add(self, line: str) -> None:
        if self.full:
            return
        if self.waiting >= _MAX_WAITING:
            self.write()
        self.lines.append(line)
        self.waiting += len(line)

    def write(self) -> None:
        if not self.lines:
            return
        data = "".join(self.lines).encode("utf-8", "backslashreplace")
        self.lines.clear()
        self.waiting = 0
        if self.size + len(data) > MAX_BYTES:
            data = data[: MAX_BYTES - self.size] + b"\n... the trace is full\n"
            self.full = True
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        self.size += len(data)


class Tracing:
    """All traces of the node; their files are in ``directory``."""

    def __init__(self, hooks: Hooks, tables: Tables, now: Callable[[], float], directory: Path) -> None:
        self._hooks = hooks
        self._table = tables.open("traces", Trace, shared=True)
        self._table.on_taken.append(self._taken)
        self._now = now
        self._directory = directory
        self._files: dict[str, _File] = {}
        self._clients: dict[str, list[_File]] = {}
        self._hosts: dict[str, list[_File]] = {}
        self._topics: list[tuple[str, _File]] = []
        self._attached = False

    # ------------------------------------------------------------- queries

    def traces(self) -> list[Trace]:
        """Return the traces in the order of their creation."""
        return list(self._table.values())

    def get(self, name: str) -> Trace | None:
        return self._table.get(name)

    def size(self, name: str) -> int:
        """Return the size of a trace's file in bytes."""
        try:
            return self.path(name).stat().st_size
        except OSError:
            return 0

    def path(self, name: str) -> Path:
        """Return the path of a trace's file, which may not exist yet."""
        if not _NAME.fullmatch(name):
            raise TraceError(f"not a trace name: {name}")
        return self._directory / f"{name}.log"

    def create(self, trace: Trace) -> None:
        """Start a trace now or at its start time. Raises TraceError, and OSError if its file cannot be created."""
        if not _NAME.fullmatch(trace.name):
            raise TraceError("name: expected letters, digits, _ and -, beginning with a letter or digit")
        if trace.name in self._table:
            raise TraceError(f"trace {trace.name} already exists", exists=True)
        now = self._now()
        for other in self._table.values():
            if other.kind == trace.kind and other.filter == trace.filter and other.status(now) != "stopped":
                raise TraceError(f"trace {other.name} has this condition already", exists=True)
        if len(self._table) >= MAX_TRACES:
            raise TraceError(f"{MAX_TRACES} traces already exist; delete one")
        if trace.end_at <= max(trace.start_at, now):
            raise TraceError("end_at: expected a future time, after start_at")
        self._begin_file(trace.name)
        self._table.put(trace.name, trace)
        self.tick(now)

    def _begin_file(self, name: str) -> None:
        """Create an empty file at the beginning, so that a failure to create it is reported immediately."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.path(name)
        path.unlink(missing_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def _taken(self, name: str, old: Trace | None, new: Trace | None) -> None:
        """Apply a trace that another node has created, stopped or deleted: each node writes its own events to its own
        file."""
        if not _NAME.fullmatch(name):
            return
        try:
            if old is None:
                self._begin_file(name)
            self.tick(self._now())
            if new is None:
                self.path(name).unlink(missing_ok=True)
        except OSError as error:
            logger.error("trace_file_failed name=%s error=%s", name, error)

    def stop(self, name: str) -> bool:
        """Stop a trace; its file stays. Return whether it exists."""
        trace = self._table.get(name)
        if trace is None:
            return False
        self._table.put(name, msgspec.structs.replace(trace, enabled=False))
        self.tick(self._now())
        return True

    def delete(self, name: str) -> bool:
        """Stop a trace and delete its file. Return whether it existed. Raises OSError if the file cannot be deleted;
        the trace stays then."""
        if name not in self._table:
            return False
        self.flush()
        self.path(name).unlink(missing_ok=True)
        self._table.remove(name)
        self.tick(self._now())
        return True

    # ------------------------------------------------------------------ running

    def tick(self, now: float) -> None:
        """Start and stop traces that are due; write the collected lines."""
        running = {trace.name: trace for trace in self._table.values() if trace.status(now) == "running"}
        self.flush()
        if running.keys() == self._files.keys():
            return
        self._files = {name: self._files.get(name) or _File(self.path(name)) for name in running}
        self._clients.clear()
        self._hosts.clear()
        self._topics.clear()
        for name, trace in running.items():
            file = self._files[name]
            if trace.kind == "clientid":
                self._clients.setdefault(trace.filter, []).append(file)
            elif trace.kind == "ip_address":
                self._hosts.setdefault(_host(trace.filter), []).append(file)
            else:
                self._topics.append((trace.filter, file))
        if bool(running) != self._attached:
            self._attach(bool(running))

    def flush(self) -> None:
        """Write the collected lines."""
        for name, file in self._files.items():
            try:
                file.write()
            except OSError as error:
                file.full = True
                logger.error("trace_stopped name=%s file=%s error=%s", name, file.path, error)

    def _attach(self, running: bool) -> None:
        self._attached = running
        hooks = self._hooks
        _attach(hooks.client_connect, self._connect, running)
        _attach(hooks.client_connack, self._connack, running)
        _attach(hooks.client_connected, self._connected, running)
        _attach(hooks.client_disconnected, self._disconnected, running)
        _attach(hooks.client_check_acl_complete, self._checked, running)
        _attach(hooks.session_subscribed, self._subscribed, running)
        _attach(hooks.session_unsubscribed, self._unsubscribed, running)
        _attach(hooks.message_publish, self._publish, running)
        _attach(hooks.message_delivered, self._delivered, running)
        _attach(hooks.message_acked, self._acked, running)
        _attach(hooks.message_dropped, self._dropped, running)
        _attach(hooks.delivery_dropped, self._delivery_dropped, running)

    def _write(self, event: str, client: Publisher | None, topic: str = "", what: str = "") -> None:
        files: list[_File] = []
        if client is not None:
            files += self._clients.get(client.client_id, ())
            files += self._hosts.get(_host(client.peer_host), ())
        if topic:
            files += [file for topic_filter, file in self._topics if matches(topic_filter, topic)]
        if not files:
            return
        when = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
        if client is None:
            who = "-"
        else:
            who = f"{shorten(client.client_id)}@{client.peer if isinstance(client, ClientInfo) else client.peer_host}"
        line = f"{when} [{event}] {who}{f' topic={shorten(topic)}' if topic else ''}{f' {what}' if what else ''}"
        line = line.replace("\n", "\\n").replace("\r", "\\r") + "\n"
        for file in dict.fromkeys(files):
            file.add(line)

    # ------------------------------------------------------------------- hooks

    def _connect(self, client: ClientInfo, properties: Properties) -> None:
        self._write("client.connect", client, what=f"proto_ver={client.proto_ver} keepalive={client.keep_alive}")

    def _connack(self, properties: Properties, client: ClientInfo, reason_code: int) -> Properties:
        self._write("client.connack", client, what=f"reason_code={reason_code}")
        return properties

    def _connected(self, client: ClientInfo) -> None:
        self._write(
            "client.connected", client, what=f"username={shorten(client.username)} keepalive={client.keep_alive}"
        )

    def _disconnected(self, client: ClientInfo, reason: str) -> None:
        self._write("client.disconnected", client, what=f"reason={reason}")

    def _checked(self, client: ClientInfo, action: str, topic: str, allowed: bool, cached: bool) -> None:
        result = "allow" if allowed else "deny"
        self._write("client.check_acl_complete", client, topic, f"action={action} result={result}")

    def _subscribed(self, client: ClientInfo, subscription: Subscription, new: bool) -> None:
        self._write("session.subscribed", client, subscription.filter, f"qos={subscription.qos}")

    def _unsubscribed(self, client: ClientInfo, subscription: Subscription) -> None:
        self._write("session.unsubscribed", client, subscription.filter)

    def _publish(self, message: Message) -> Message:
        self._write("message.publish", message.publisher, message.topic, _of(message))
        return message

    def _delivered(self, client: ClientInfo, message: Message) -> None:
        self._write("message.delivered", client, message.topic, f"qos={message.qos}")

    def _acked(self, client: ClientInfo, message: Message) -> None:
        self._write("message.acked", client, message.topic, f"qos={message.qos}")

    def _dropped(self, message: Message, reason: str) -> None:
        self._write("message.dropped", message.publisher, message.topic, f"reason={reason}")

    def _delivery_dropped(self, client: ClientInfo, session: Session, message: Message, reason: str) -> None:
        self._write("delivery.dropped", client, message.topic, f"reason={reason} receiver={shorten(session.client_id)}")


def _attach(point: HookPoint[C], callback: C, attached: bool) -> None:
    if attached:
        point.add(callback)
    else:
        point.remove(callback)


@lru_cache(4096)
def _host(text: str) -> str:
    """Return an address for comparison: an IPv4 address from an IPv6 socket in IPv4 form."""
    return str(ip_address_of(text) or text)


def _of(message: Message) -> str:
    payload = message.payload
    start = payload[:_PAYLOAD]
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError:
        text = "0x" + start.hex()
    more = f" ({len(payload)} bytes)" if len(payload) > _PAYLOAD else ""
    return f"qos={message.qos} retain={message.retain} payload={text}{more}"
