"""BackgroundNode: a node in a thread, for programs without an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from .access_callbacks import Authenticator, Authorizer
from .keywords import Keywords, Table
from .message import Message, Properties
from .node import NEW, STOPPED, Node, NodeError
from .rule_callbacks import ActionFunction
from .subscription import Subscription

T = TypeVar("T")

_JOIN: Final = 60.0


class BackgroundSubscription:
    """A ``Subscription`` for a program without an event loop, usable in any of its threads."""

    def __init__(self, node: BackgroundNode, subscription: Subscription) -> None:
        self._node = node
        self._subscription = subscription

    def get(self, timeout: float | None = None) -> Message:
        """Return the next message.

        Raises TimeoutError after ``timeout`` seconds, EOFError when the subscription has ended.
        """
        if not self._node.running:
            left = self._subscription.take()
            if left is not None:
                return left
            raise EOFError("the subscription has ended")
        try:
            return self._node.call(asyncio.wait_for(_next(self._subscription), timeout))
        except (StopAsyncIteration, NodeError):
            raise EOFError("the subscription has ended") from None
        except TimeoutError:
            raise TimeoutError(f"no message for {self._subscription.filter!r} within {timeout} s") from None

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                yield self.get()
            except EOFError:
                return

    @property
    def dropped(self) -> int:
        """The number of messages dropped because ``max_queued`` messages, or too many bytes, were waiting."""
        return self._subscription.dropped

    def close(self) -> None:
        """End the subscription."""
        if self._node.running:
            self._node.call(_call(self._subscription.close))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BackgroundNode:
    """A node in a thread, for use from any thread: ``with BackgroundNode(...) as node``.

    It has the methods of ``Node``, which wait for their result. Callbacks run in the node's thread.
    ``node`` is the ``Node`` itself: add hooks, authenticators, functions and actions to it before the start.
    """

    def __init__(
        self,
        *,
        config: Table | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
        **keywords: Unpack[Keywords],
    ) -> None:
        """``loop_factory``: a function for another event loop, such as ``uvloop.new_event_loop``."""
        self._begin(Node(config=config, **keywords), loop_factory)

    @classmethod
    def from_file(cls, path: str, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> Self:
        """Return a node with a configuration file; see ``Node.from_file``."""
        made = cls.__new__(cls)
        made._begin(Node.from_file(path), loop_factory)
        return made

    def _begin(self, node: Node, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> None:
        self.node = node
        self._loop_factory = loop_factory
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None

    # ----------------------------------------------------------- start, stop

    def start(self) -> Self:
        """Start the thread and accept clients. Raises NodeError if the node cannot start."""
        if self._thread is not None:
            raise NodeError("the node was already started once: create another BackgroundNode to start again")
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="taipan", daemon=True)
        self._thread.start()
        try:
            ready.result()
        except BaseException:
            self.stop()
            raise
        return self

    def _run(self, ready: concurrent.futures.Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                runner.get_loop()
                runner.run(self._serve(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(NodeError(f"the node cannot start: loop_factory: {error!r}"))

    async def _serve(self, ready: concurrent.futures.Future[None]) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            await self.node.start()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        await self._stop.wait()
        await self.node.stop()

    def stop(self) -> None:
        """Disconnect the clients, close the node and end the thread, within a limited time."""
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None:
            return
        if thread is threading.current_thread():
            raise NodeError("a callback of the node cannot stop the node: the callback would wait for itself")
        if loop is not None and stop is not None and thread.is_alive():
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:
                pass  # the loop has already ended
        thread.join(_JOIN)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether the node accepts clients."""
        return self.node.running

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the node's event loop and return its result. Raises NodeError if it does not run."""
        loop = self._loop
        if loop is None or not self.node.running:
            work.close()
            raise NodeError(f"the node {NEW if self._thread is None else STOPPED}")
        if self._thread is threading.current_thread():
            work.close()
            raise NodeError("a callback of the node cannot wait for the node: use an asyncio task on its own loop")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise NodeError(f"the node {STOPPED}") from None
        except BaseException:
            future.cancel()
            raise

    # ---------------------------------------------------------- as Node has

    @property
    def url(self) -> str:
        """The URL of the first listener."""
        return self.node.url

    @property
    def urls(self) -> list[str]:
        """The URL of each listener."""
        return self.node.urls

    @property
    def host(self) -> str:
        """The host of the first listener."""
        return self.node.host

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.node.port

    @property
    def management_url(self) -> str | None:
        """The URL of the HTTP API, or None."""
        return self.node.management_url

    def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """Publish a message as the node; see ``Node.publish``."""
        self.call(self.node.publish(topic, payload, qos, retain, properties))

    def subscribe(self, topic_filter: str, *, max_queued: int = 1000) -> BackgroundSubscription:
        """Subscribe; see ``Node.subscribe``. Iterate over the result, or call its ``get(timeout)``."""
        made = self.call(_call(lambda: self.node.subscribe(topic_filter, max_queued=max_queued)))
        return BackgroundSubscription(self, made)

    def add_rule(self, sql: str, *actions: str | tuple[str, Mapping[str, object]]) -> str:
        """Create a rule and return its ID; see ``Node.add_rule``."""
        return self.call(self.node.add_rule(sql, *actions))

    def remove_rule(self, id: str) -> None:
        """Delete a rule; see ``Node.remove_rule``."""
        self.call(self.node.remove_rule(id))

    def add_authenticator(self, callback: Authenticator, *, timeout: float = 5.0) -> None:
        """Add an authenticator; see ``Node.add_authenticator``."""
        self.node.add_authenticator(callback, timeout=timeout)

    def add_authorizer(self, callback: Authorizer, *, timeout: float = 5.0) -> None:
        """Add an authorizer; see ``Node.add_authorizer``."""
        self.node.add_authorizer(callback, timeout=timeout)

    def add_function(self, callback: Callable[..., object], name: str | None = None) -> None:
        """Add an SQL function; see ``Node.add_function``."""
        self.node.add_function(callback, name)

    def add_action(self, name: str, callback: ActionFunction, title: str = "") -> None:
        """Add an action for rules; see ``Node.add_action``."""
        self.node.add_action(name, callback, title)


async def _next(subscription: Subscription) -> Message:
    return await anext(subscription)


async def _call(work: Callable[[], T]) -> T:
    return work()
