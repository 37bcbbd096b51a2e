"""Cluster: what a node asks of the other nodes, and the answer of a node that has none."""

from asyncio import Future
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec

from ..mqtt.message import Message
from ..session.client_info import ClientInfo
from ..session.session import Session
from .outcome import Outcome

RUNNING: Final = "Running"
SUSPECT: Final = "Suspect"
STOPPED: Final = "Stopped"

ELECTION: Final = 15.0
"""Seconds that a retained message of QoS 1 or 2 waits at the longest for the cluster to decide: an election takes 4 to
8."""

_ALONE: Final = "this node is in no cluster (setting cluster.servers)"


class Member(msgspec.Struct, frozen=True):
    """A node of the cluster. ``uid`` is of its data, ``incarnation`` grows with each of its starts, ``since`` is when
    its status changed (unix seconds)."""

    name: str
    uid: str
    incarnation: int
    status: str
    since: float
    version: str


class NodeUnreachable(Exception):
    """A node is not there, or does not answer in time."""


class CallFailed(Exception):
    """A node answered that it could not do what it was asked; the text says why."""


class ChangeRefused(Exception):
    """The members cannot be changed so; the text says why."""


Handler = Callable[[str, bytes], Awaitable[bytes]]
"""Answers a call: the node that asks, its argument; returns the answer. What it raises is told to who asked."""


class Cluster(Protocol):
    """``clustered``: whether there may be other nodes. ``strict_subscribe``: SUBACK waits until they know of it."""

    clustered: bool
    strict_subscribe: bool

    @property
    def refused(self) -> str:
        """Why this node is no member though it has not left: it was forced out, or another one has its name."""

    def members(self) -> list[Member]:
        """All known nodes by name, this one and stopped ones too."""

    def claim(
        self, client: ClientInfo, clean_start: bool, expiry: int, waits: Callable[[], bool]
    ) -> Awaitable[Outcome | None] | None:
        """A client was let in: make its session this node's, before it is opened here. ``None``: go on at once.

        The awaitable gives why the client must be refused, or ``None``. ``waits``: whether it is still there."""

    async def subscribed(self, client_id: str, filters: list[str]) -> None:
        """Until all running nodes know that these filters have subscribers here."""

    def session_ended(self, session: Session) -> None:
        """A session of this node is over."""

    def will_changed(self, client_id: str) -> None:
        """The will of a client of this node is in force, waits for its delay, or is gone."""

    def hold_will(self, client_id: str, will: Message, number: int) -> bool:
        """A will is due. True: another node may have published it; it is published here, and its ``number`` is gone
        from the store, as soon as it is known that none has."""

    def node_of(self, client_id: str) -> str | None:
        """The other node that has this client's session or connection; ``None``: this one, or nobody known."""

    def serve(self, method: str, handler: Handler) -> None:
        """From now on calls of ``method`` from other nodes are answered by ``handler``."""

    async def call(self, node: str, method: str, argument: bytes, timeout: float | None = None) -> bytes:
        """Ask another node. ``timeout``: seconds, ``None``: the setting ``cluster.call_timeout``.

        :raises NodeUnreachable: it is not there, or did not answer.
        :raises CallFailed: it could not do it.
        """

    @property
    def evacuating(self) -> bool:
        """Whether this node lets nobody in, and its clients and sessions go to others."""

    async def evacuate(self) -> None:
        """Let nobody in, close all connections, and move the sessions to other nodes; from now on, until
        ``end_evacuation`` or the end of the process.

        :raises ChangeRefused: it does already, or no other node can take them now.
        """

    def end_evacuation(self) -> None:
        """Let clients in again. Sessions that have gone stay where they are.

        :raises ChangeRefused: it does already.
        """

    @property
    def owed_to_others(self) -> int:
        """Messages that wait here for other nodes."""

    @property
    def kept_for_others(self) -> int:
        """Sessions that have gone from here to other nodes, for which nodes that are away may still send something
        here."""

    async def join(self, node: str) -> None:
        """Take part again after ``leave``, in the cluster that the configuration names.

        :raises ChangeRefused: it does already, or cannot now, or ``node`` is no member of that cluster. Then nothing is
            changed.
        """

    async def leave(self) -> None:
        """End this node's part: it serves its own clients alone, after a restart too, until ``join``.

        :raises ChangeRefused: it has left already, or cannot now.
        """

    async def force_leave(self, node: str) -> None:
        """Take a node that is Stopped and will not come back out of the cluster.

        :raises ChangeRefused: it is not known, or not Stopped, or that cannot be written now.
        """


class RetainedChanges(Protocol):
    """Is told what is retained and cleared on this node. ``writable``: whether the other nodes can be told now;
    ``takes``: or probably soon, so that a client's message is taken and its acknowledgement waits."""

    @property
    def writable(self) -> bool: ...

    @property
    def takes(self) -> bool: ...

    def fits(self, message: Message) -> bool:
        """Whether the other nodes can be told of a message of this size."""

    def changed(self, topic: str) -> Future[None] | None:
        """The retained message of a topic is another one, or there is none any more. What it returns is done when the
        order of that and of other nodes' changes is decided; ``None``: its acknowledgement need not wait for it."""

    def undecided(self, topic: str) -> Future[None] | None:
        """The same, of the last change of a topic here."""


class SingleNode:
    """A node without ``[cluster]``."""

    clustered: bool = False
    strict_subscribe: bool = False
    refused: str = ""
    evacuating: bool = False
    owed_to_others: int = 0
    kept_for_others: int = 0

    def __init__(self, name: str, version: str, since: float) -> None:
        self._member = Member(name, "", 0, RUNNING, since, version)

    def members(self) -> list[Member]:
        return [self._member]

    def claim(self, client: ClientInfo, clean_start: bool, expiry: int, waits: Callable[[], bool]) -> None:
        return None

    async def subscribed(self, client_id: str, filters: list[str]) -> None:
        pass

    def session_ended(self, session: Session) -> None:
        pass

    def will_changed(self, client_id: str) -> None:
        pass

    def hold_will(self, client_id: str, will: Message, number: int) -> bool:
        return False

    def node_of(self, client_id: str) -> None:
        return None

    def serve(self, method: str, handler: Handler) -> None:
        pass

    async def call(self, node: str, method: str, argument: bytes, timeout: float | None = None) -> bytes:
        raise NodeUnreachable(node)

    async def evacuate(self) -> None:
        raise ChangeRefused(_ALONE)

    def end_evacuation(self) -> None:
        raise ChangeRefused(_ALONE)

    async def join(self, node: str) -> None:
        raise ChangeRefused(_ALONE)

    async def leave(self) -> None:
        raise ChangeRefused(_ALONE)

    async def force_leave(self, node: str) -> None:
        raise ChangeRefused(_ALONE)
