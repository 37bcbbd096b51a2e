"""Cluster: a node's questions to other nodes, and their answers on a node without a cluster."""

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

ABSENT: Final = "absent"
FILLING: Final = "filling"
CATCHING_UP: Final = "catching_up"
JOINING: Final = "joining"
IN_SYNC: Final = "in_sync"
COPY_STATES: Final = (ABSENT, FILLING, CATCHING_UP, JOINING, IN_SYNC)
"""The states of a copy of a node's data on another node (``cluster.replicas.origin``)."""

ELECTION: Final = 15.0
"""Maximum seconds that a retained QoS 1 or 2 message waits for the decision of the cluster: an election takes 4 to
8."""

_ALONE: Final = "this node is in no cluster (setting cluster.servers)"


class Member(msgspec.Struct, frozen=True):
    """A node of the cluster. ``uid`` identifies its data, ``incarnation`` grows with each of its starts, ``since`` is
    the time of its last change of status (Unix seconds). ``hosted_by``: the node that runs this lost one from its copy;
    empty: none."""

    name: str
    uid: str
    incarnation: int
    status: str
    since: float
    version: str
    hosted_by: str = ""


class CopyStatus(msgspec.Struct, frozen=True):
    """The copy of a node's data on another node. ``state``: ``in_sync`` if acknowledgements wait for it; otherwise the
    progress of the copy. ``batches`` and ``bytes``: number and size of missing batches; ``seconds``: since the state
    began. If ``node`` is stopped, the last three are 0."""

    node: str
    copy: str
    state: str
    batches: int = 0
    bytes: int = 0
    seconds: float = 0.0


class HostedStatus(msgspec.Struct, frozen=True):
    """A lost node that another one, ``host``, runs from its copy ``since`` a time in Unix seconds. ``owed``: what keeps
    it from leaving, by kind."""

    node: str
    host: str
    since: float
    owed: dict[str, int]


LINK_OPEN: Final = "open"
LINK_OPENING: Final = "opening"
LINK_CLOSED: Final = "closed"


class LinkStatus(msgspec.Struct, frozen=True):
    """The messages that ``node`` sends to another node, ``to``. ``state``: ``open``; ``opening`` until the other node
    has reported which message it expects; ``closed`` if one of the two cannot be reached. ``rate``: messages per
    second, the mean of the last ten seconds. ``sent``: messages since the start, including those that were sent again.
    ``waiting``: messages that are queued or not acknowledged; ``waiting_bytes``: bytes that are queued or have not
    arrived; ``oldest``: seconds since the first of these messages was accepted, ``None``: none waits. ``dropped``:
    messages since the start."""

    node: str
    to: str
    state: str
    rate: float
    sent: int
    waiting: int
    waiting_bytes: int
    oldest: float | None
    dropped: int


class NodeUnreachable(Exception):
    """A node is offline, or does not answer in time."""


class CallFailed(Exception):
    """A node answered that the call failed; the message says why."""


class ChangeRefused(Exception):
    """The membership cannot be changed in this way; the message says why."""


Handler = Callable[[str, bytes], Awaitable[bytes]]
"""Handles a call: its arguments are the calling node and the argument, it returns the answer. Its exceptions are
reported to the caller."""


class Cluster(Protocol):
    """``clustered``: whether other nodes may exist. ``strict_subscribe``: SUBACK waits until they know the
    subscription. ``on_replaced`` is called once, if another node runs in place of this one: it accepts no clients until
    its next start."""

    clustered: bool
    strict_subscribe: bool
    on_replaced: list[Callable[[], None]]

    @property
    def refused(self) -> str:
        """Return why this node is not a member although it has not left: it was removed, or another node has its
        name."""

    def members(self) -> list[Member]:
        """Return all known nodes by name, including this one and stopped ones."""

    def claim(
        self, client: ClientInfo, clean_start: bool, expiry: int, waits: Callable[[], bool]
    ) -> Awaitable[Outcome | None] | None:
        """Make the session of an accepted client this node's, before it is opened here. ``None``: continue immediately.

        The awaitable returns why the client must be refused, or ``None``. ``waits``: whether the client is still
        connected."""

    async def subscribed(self, client_id: str, filters: list[str]) -> None:
        """Wait until all running nodes know that these filters have subscribers here."""

    def session_ended(self, session: Session) -> None:
        """Report that a session of this node has ended."""

    def will_changed(self, client_id: str) -> None:
        """Report that the Will of a client of this node was set, waits for its delay, or was removed."""

    def hold_will(self, client_id: str, will: Message, number: int) -> bool:
        """Handle a Will that is due. True: another node may have published it; it is published here, and deleted from
        the store by its ``number``, as soon as it is known that no node has."""

    def node_of(self, client_id: str) -> str | None:
        """Return the other node with this client's session or connection; ``None``: it is on this node, or unknown."""

    def serve(self, method: str, handler: Handler) -> None:
        """Answer calls of ``method`` from other nodes with ``handler`` from now on."""

    async def call(self, node: str, method: str, argument: bytes, timeout: float | None = None) -> bytes:
        """Call another node. ``timeout``: seconds, ``None``: the setting ``cluster.call_timeout``.

        :raises NodeUnreachable: the node is offline, or did not answer. :raises CallFailed: the call failed there."""

    def copies_of_data(self) -> list[CopyStatus]:
        """Return the copies of this node's data, and those of stopped nodes as far as this node knows."""

    def links_to_others(self) -> list[LinkStatus]:
        """Return the links from this node to each other member, by name."""

    @property
    def evacuating(self) -> bool:
        """Whether this node accepts no clients, and its clients and sessions move to other nodes."""

    async def evacuate(self) -> None:
        """Refuse clients, close all connections, and move the sessions to other nodes, until ``end_evacuation`` or the
        end of the process.

        :raises ChangeRefused: an evacuation is running, or no other node can accept the clients and sessions."""

    def end_evacuation(self) -> None:
        """Accept clients again. Sessions that have moved stay where they are.

        :raises ChangeRefused: no evacuation is running."""

    @property
    def owed_to_others(self) -> int:
        """Return the number of messages that wait here for other nodes."""

    @property
    def kept_for_others(self) -> int:
        """Return the number of sessions that have moved to other nodes, for which unreachable nodes may still send
        something here."""

    async def join(self, node: str) -> None:
        """Join the configured cluster again after ``leave``.

        :raises ChangeRefused: this node is a member, or cannot join now, or ``node`` is not a member of that cluster.
        Nothing is changed then."""

    async def leave(self) -> None:
        """Leave the cluster: this node serves its own clients alone, even after a restart, until ``join``.

        :raises ChangeRefused: it has already left, or cannot leave now."""

    async def force_leave(self, node: str, copies_lost: bool = False) -> None:
        """Remove a Stopped node that will not return from the cluster. ``copies_lost``: the copies of its data that
        other Stopped nodes had are lost, too.

        :raises ChangeRefused: it is unknown, not Stopped, or the change cannot be written now."""


class RetainedChanges(Protocol):
    """Receives changes of retained messages on this node. ``writable``: whether the other nodes can be informed now;
    ``takes``: or probably soon, so that a client's message is accepted and its acknowledgement waits."""

    @property
    def writable(self) -> bool: ...

    @property
    def takes(self) -> bool: ...

    def fits(self, message: Message) -> bool:
        """Return whether the other nodes can receive a message of this size."""

    def changed(self, topic: str) -> Future[None] | None:
        """Report that the retained message of a topic was replaced or deleted. The returned future is done when the
        order of this and of other nodes' changes is decided; ``None``: the acknowledgement need not wait."""

    def undecided(self, topic: str) -> Future[None] | None:
        """Return the future of the last change of a topic on this node."""


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
        self.on_replaced: list[Callable[[], None]] = []

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

    def copies_of_data(self) -> list[CopyStatus]:
        return []

    def links_to_others(self) -> list[LinkStatus]:
        return []

    async def evacuate(self) -> None:
        raise ChangeRefused(_ALONE)

    def end_evacuation(self) -> None:
        raise ChangeRefused(_ALONE)

    async def join(self, node: str) -> None:
        raise ChangeRefused(_ALONE)

    async def leave(self) -> None:
        raise ChangeRefused(_ALONE)

    async def force_leave(self, node: str, copies_lost: bool = False) -> None:
        raise ChangeRefused(_ALONE)
