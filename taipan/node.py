"""Node: a complete node inside a Python program."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import weakref
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from .access_callbacks import Authenticator, Authorizer, add_authenticator, add_authorizer
from .broker.core.outcome import OPERATOR
from .broker.mqtt import reason_codes
from .broker.observability.log_text import one_line
from .broker.session.client_info import authority
from .broker.transport.listener import Listener
from .hooks import Hooks
from .keywords import Keywords, Table, load_file, load_keywords
from .management.assembly import Assembly
from .management.configuration.config import Loaded
from .management.data_dir import DataDir
from .management.operations.backpressure_slice import BackpressureSlice
from .management.operations.durable_answer import wait_until_stored
from .management.operations.refusal import Refusal
from .message import Properties, broker_message
from .rule_callbacks import ActionFunction, action_type, sql_function
from .ruleengine.error import RuleEngineError
from .subscription import Subscription

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_DRAIN: Final = 5.0
"""The time in seconds that asynchronous actions have when the node stops."""

NEW: Final = "has not been started"
STARTING: Final = "is starting"
RUNNING: Final = "is running"
STOPPING: Final = "is stopping"
STOPPED: Final = "has stopped"


class NodeError(Exception):
    """The node cannot do this, or not now. The message is one sentence with the reason."""


class Extensions(Hooks):
    """The parts that a program adds to its node: hooks, access callbacks, SQL functions and actions.

    Add them at any time before the node stops. Add functions and actions that stored rules use before it starts.
    """

    def __init__(self, loaded: Loaded, managed: bool) -> None:
        # Open nothing here: a node that never starts leaves nothing behind.
        self.secrets: list[str] = []
        self._assembly = Assembly(loaded, managed, self.secrets.append)
        self._server = self._assembly.server
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = self._server.metrics.refusals.add
        super().__init__(self._server.hooks)

    def add_authenticator(self, callback: Authenticator, *, timeout: float = 5.0) -> None:
        """Add ``callback(client, password)``, which authenticates clients before the sources of the settings.

        It returns True, False, ``"superuser"``, or None for the next source, and may be asynchronous. If it takes more
        than ``timeout`` seconds, raises an exception or returns any other value, the node refuses the client, and
        counts and logs the failure (``authenticator_failed``).
        """
        add_authenticator(self._server.access, callback, timeout, self._count)

    def add_authorizer(self, callback: Authorizer, *, timeout: float = 5.0) -> None:
        """Add ``callback(client, action, topic)``, which authorizes clients before the sources of the settings.

        It returns True, False, or None for the next source, and may be asynchronous. ``action`` is ``"publish"`` or
        ``"subscribe"``. A failure refuses the request (``authorizer_failed``). The node caches the answers for each
        client as set by ``cache`` in ``[access]``.
        """
        add_authorizer(self._server.access, callback, timeout, self._count)

    def add_function(self, callback: Callable[..., object], name: str | None = None) -> None:
        """Add an SQL function for rules of this node, under its own name or ``name``.

        The annotations of the function specify the kinds of values that it accepts.
        """
        self._assembly.engine.add_function(sql_function(callback, name))

    def add_action(self, name: str, callback: ActionFunction, title: str = "") -> None:
        """Add the action ``name`` for rules of this node: ``callback(row)``, which may be asynchronous."""
        self._assembly.engine.add_action_type(action_type(name, callback, title, self._tasks))


class Node(Extensions):
    """A node: ``async with Node(...) as node``, or ``await start()`` and ``await stop()``, once each.

    Keywords are the tables of the configuration file (``Keywords``); ``config`` is the whole file as a dictionary.
    Raises ConfigError or TypeError if they are invalid. The node changes nothing outside the object: it does not set up
    logging or handle signals. One event loop may run several nodes.
    """

    def __init__(self, *, config: Table | None = None, **keywords: Unpack[Keywords]) -> None:
        loaded, temporary = load_keywords(config, keywords)
        settings = loaded.settings
        managed = settings.management.enabled or settings.dashboard.enabled or settings.history.enabled
        self._begin(loaded, managed, temporary, None)

    @classmethod
    def from_file(cls, path: str) -> Self:
        """Return a node with the configuration file ``path``, as for ``taipan --config``.

        Environment variables have no effect, and ``[log]`` applies to the command only.
        """
        made = cls.__new__(cls)
        made._begin(load_file(str(path)), True, False, str(path))
        return made

    def _begin(self, loaded: Loaded, managed: bool, temporary: bool, file: str | None) -> None:
        Extensions.__init__(self, loaded, managed)
        self.settings = settings = loaded.settings
        self._file = file
        self._kept = managed or settings.broker.durability.level == "disk"
        self._temporary = temporary
        self._data_dir: DataDir | None = None
        self._state = NEW
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: BackpressureSlice | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._numbers = itertools.count(1)
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()

    # ----------------------------------------------------------- start, stop

    async def start(self) -> Self:
        """Accept clients. Raises NodeError if the node cannot start. Then, or if cancelled, no resource stays open."""
        if self._state != NEW:
            raise NodeError(f"the node {self._state}: create another Node to start again")
        self._state = STARTING
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        try:
            if self._kept:
                self._data_dir = DataDir(self.settings.broker.node.data_dir, self._file)
            if self._assembly.management is not None:
                await asyncio.to_thread(
                    self._assembly.engine.prepare
                )  # a request to the HTTP API may create a rule at any time
            await _to_the_end(self._begun(), True)
        except BaseException as error:
            if self._work is not None:  # cancelled after everything had started
                await _to_the_end(self._stop())
            else:
                self._state = STOPPED
                self._release()
                self._stopped.set_result(None)
            if isinstance(error, Exception):
                raise NodeError(f"the node cannot start: {one_line(str(error) or type(error).__name__)}") from error
            raise
        self._state = RUNNING
        return self

    async def _begun(self) -> None:
        await self._assembly.start()
        self._work = BackpressureSlice(self._server)

    async def stop(self) -> None:
        """Disconnect the clients and close the node, within a limited time; return immediately if it does not run.

        ``stop`` runs to completion even if the caller is cancelled in the meantime. Raises NodeError during the start.
        """
        if self._state == NEW:
            self._state = STOPPED
        if self._state == RUNNING:
            self._state = STOPPING
            await _to_the_end(self._stop())
        elif self._state == STARTING:
            raise NodeError("the node is starting: cancel its start, or wait for it")
        elif self._state == STOPPING:
            assert self._stopped is not None
            await asyncio.shield(self._stopped)

    async def _stop(self) -> None:
        try:
            await self._assembly.disconnect()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_DRAIN)
            for subscription in list(self._subscriptions):
                subscription.close()
            tasks = list(self._tasks)
            await self._assembly.stop()
            if tasks:
                await asyncio.wait(tasks)
        finally:
            self._state = STOPPED
            self._release()
            assert self._stopped is not None
            if not self._stopped.done():
                self._stopped.set_result(None)

    def _release(self) -> None:
        if self._data_dir is not None:
            self._data_dir.close()
            self._data_dir = None
            if self._temporary:
                shutil.rmtree(self.settings.broker.node.data_dir, ignore_errors=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _running(self, what: str) -> None:
        if self._state != RUNNING:
            raise NodeError(f"{what}: the node {self._state}")

    @property
    def running(self) -> bool:
        """Whether the node accepts clients."""
        return self._state == RUNNING

    # ----------------------------------------------------------- where it is

    @property
    def url(self) -> str:
        """The URL of the first listener, such as ``mqtt://127.0.0.1:41233``."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        """The URL of each listener, in their order; ``unix:///run/mqtt.sock`` for a Unix socket."""
        self._running("urls")
        urls = []
        for listener in self._server.listeners:
            host, port = listener.bind
            path = ""
            if listener.kind.websocket:
                paths = listener.settings.path
                path = (paths if isinstance(paths, str) else paths[0]).replace("*", "/mqtt")
            urls.append(f"{listener.kind.scheme}://{authority(_ANY.get(host, host), port)}{path}")
        return urls

    @property
    def host(self) -> str:
        """The host of the first listener; the path of a Unix socket."""
        self._running("host")
        host = self._server.listeners[0].bind[0]
        return _ANY.get(host, host)

    @property
    def port(self) -> int:
        """The port of the first listener; 0 for a Unix socket."""
        self._running("port")
        return self._server.listeners[0].port

    @property
    def management_url(self) -> str | None:
        """The URL of the HTTP API, or None."""
        self._running("management_url")
        management = self._assembly.management
        return management.url if management is not None and self.settings.management.enabled else None

    @property
    def dashboard_url(self) -> str | None:
        """The URL of the dashboard, or None."""
        self._running("dashboard_url")
        management, settings = self._assembly.management, self.settings
        shown = settings.dashboard.enabled or (settings.management.enabled and settings.dashboard.on_management)
        return management.dashboard_url if management is not None and shown else None

    @property
    def _listeners(self) -> list[Listener]:
        """The listeners, for ``taipan.testing``."""
        return self._server.listeners

    def _client_ids(self) -> list[str]:
        """Return the client IDs of connected clients, for ``taipan.testing``."""
        return sorted(self._server.context.channels)

    # ------------------------------------------------------------- messages

    async def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """Publish as the node itself, without a check of access rules.

        When the call returns, the message is on its way to the subscribers, and everything that has to survive is on
        disk. Raises NodeError if the node refuses the message, ValueError if the message is invalid in MQTT.
        """
        self._running("publish")
        message = broker_message(topic, payload, qos, retain, properties)
        broker = self._server.broker
        assert self._work is not None
        await self._work.checkpoint()
        self._running("publish")
        message.timestamp = broker.clock.now()
        durability = broker.durability
        mark = 0 if durability is None else durability.commit.written
        if broker.inspection is None:
            outcome = broker.accept(message, OPERATOR)
        else:
            outcome = await broker.inspection.accept(message, OPERATOR)
        if outcome.refused:
            reason = outcome.detail or reason_codes.name(outcome.code)
            raise NodeError(f"publish to {topic!r} is refused: {reason} (setting {outcome.setting})")
        if durability is not None and durability.commit.written != mark:
            try:
                await wait_until_stored(self._server.tables)
            except Refusal as refusal:
                raise NodeError(f"publish to {topic!r}: {refusal.message}") from None

    def subscribe(self, topic_filter: str, *, max_queued: int = 1000) -> Subscription:
        """Subscribe, effective immediately: ``async for message in node.subscribe("a/#")``.

        Raises ValueError if ``topic_filter`` is not a Topic Filter, or if ``max_queued`` is less than 1.
        """
        self._running("subscribe")
        made = Subscription(self._server, next(self._numbers), topic_filter, max_queued)
        self._subscriptions.add(made)
        return made

    # ---------------------------------------------------------------- rules

    async def add_rule(self, sql: str, *actions: str | tuple[str, Mapping[str, object]]) -> str:
        """Create a rule and return its ID. Raises NodeError if it is invalid.

        ``actions``: names, or pairs of a name and parameters.
        """
        self._running("add_rule")
        await asyncio.to_thread(self._assembly.engine.prepare)
        self._running("add_rule")
        made = [(each, {}) if isinstance(each, str) else each for each in actions]
        try:
            rule = await self._assembly.engine.rules.create(
                sql, [{"name": name, "params": dict(params)} for name, params in made]
            )
        except RuleEngineError as error:
            raise NodeError(f"add_rule: {error.message}") from None
        return rule.id

    async def remove_rule(self, id: str) -> None:
        """Delete a rule. Raises NodeError if it does not exist."""
        self._running("remove_rule")
        try:
            await self._assembly.engine.rules.delete(id)
        except RuleEngineError as error:
            raise NodeError(f"remove_rule: {error.message}") from None


async def _to_the_end(work: Coroutine[Any, Any, T], cancel: bool = False) -> T:
    """Return the result of ``work``, which ends first even if the caller is cancelled.

    ``cancel``: in that case, also cancel ``work``, once.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            if cancel and cancelled is None:
                task.cancel()
            cancelled = error
    if cancelled is not None and not (task.cancelled() or task.exception() is None):
        raise cancelled from task.exception()
    if cancelled is not None:
        raise cancelled
    return task.result()
