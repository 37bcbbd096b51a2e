"""Wire: the form of everything that nodes exchange, as messages and as values of buckets.

The first byte is the version of the form, the second the oldest version that can read it. They are followed by the
length of the header in two bytes, the header, and the body; both are MessagePack. A new field with a default at the end
of a struct does not need a new version; any other change does.
"""

import logging
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from ..mqtt.message import Message
from ..mqtt.properties import of_publish
from ..mqtt.topics import valid_name
from ..observability.metrics import Reasons
from ..persistence.log import records

logger = logging.getLogger(__name__)

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of decoding malformed bytes: text that is not UTF-8 and excessively nested arrays raise different ones."""

VERSION: Final = 1
"""The version that this node writes, unless a node of the cluster cannot read it yet."""
OLDEST: Final = 1
"""The oldest version that this node reads, and that it can write."""
OVERHEAD: Final = 4096
"""Maximum bytes for everything except the body, however long the names in the header are."""

TRUNCATED: Final = "truncated"
MALFORMED: Final = "malformed"
NEWER_VERSION: Final = "newer_version"
OLDER_VERSION: Final = "older_version"
OTHER_CLUSTER: Final = "other_cluster"
FORCED_OUT: Final = "forced_out"
OLD_INCARNATION: Final = "old_incarnation"
UNKNOWN_NODE: Final = "unknown_node"
NOT_KNOWN_YET: Final = "not_known_yet"
HAS_LEFT: Final = "has_left"
OWN_NAME: Final = "own_name"

_FIXED: Final = 4
_REMEMBERED: Final = 256
_EVERY: Final = 60.0
"""Seconds between two log lines about the same refusal."""


def node_key(node: str) -> str:
    """Return the name of a node as a part of subjects and keys."""
    return blake2b(node.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def thing_key(thing: str) -> str:
    """Return a client ID, a topic filter or a topic as a key of a bucket."""
    return blake2b(thing.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Header(msgspec.Struct, array_like=True, frozen=True):
    """The writer of a message or value. ``uid`` and ``incarnation`` are those of ``core.cluster.Member``."""

    cluster: str
    node: str
    uid: str
    incarnation: int


class Refusals:
    """Counts refusals as ``cluster_<reason>``, and logs each reason and node once a minute."""

    def __init__(self, counts: Reasons, now: Callable[[], float]) -> None:
        self._counts = counts
        self._now = now
        # (reason, node) -> when the next line may be logged
        self._told: dict[tuple[str, str], float] = {}

    def count(self, reason: str) -> None:
        """Count a refusal without a log line, because the fault is corrected and may be frequent."""
        self._counts.add("cluster_" + reason)

    def add(self, reason: str, node: str, setting: str, times: int = 1) -> None:
        """Count and log a refusal. ``node`` is the sender, and ``setting`` the setting that decides about it."""
        self._counts.add("cluster_" + reason, times)
        now = self._now()
        if now < self._told.get((reason, node), 0.0):
            return
        if len(self._told) >= _REMEMBERED:
            self._told.clear()
        self._told[reason, node] = now + _EVERY
        logger.warning("cluster_refused node=%s reason=%s setting=%s", node, reason, setting)


BodyT = TypeVar("BodyT")


class Reader(Generic[BodyT]):
    """Decodes messages and values with a body of one type."""

    __slots__ = ("_decode", "_wire")

    def __init__(self, wire: "Wire", kind: type[BodyT]) -> None:
        self._wire = wire
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def message(self, data: bytes) -> tuple[Header, BodyT] | None:
        """Decode a message from another node, or return ``None`` if the message is refused."""
        header = self._wire.header(data)
        if header is None or not self._wire.admits(header):
            return None
        return self._body(header, data)

    def value(self, data: bytes) -> tuple[Header, BodyT] | None:
        """Decode a value of a bucket, whichever node wrote it, or return ``None`` if the value is not readable."""
        header = self._wire.header(data)
        return None if header is None else self._body(header, data)

    def _body(self, header: Header, data: bytes) -> tuple[Header, BodyT] | None:
        try:
            return header, self._decode(memoryview(data)[_FIXED + (data[2] << 8 | data[3]) :])
        except UNREADABLE:
            self._wire.refusals.add(MALFORMED, header.node, "-")
            return None


class Wire:
    """Writes and reads on behalf of one node. Call ``identify`` first. ``admits`` returns whether messages of a node
    are accepted at present; ``Admission`` sets it. ``version`` is the version that is written: the newest that all
    nodes read."""

    def __init__(self, cluster: str, node: str, refusals: Refusals) -> None:
        self.cluster = cluster
        self.node = node
        self.uid = ""
        self.incarnation = 0
        self.refusals = refusals
        self.version = VERSION
        self.admits: Callable[[Header], bool] = lambda header: True
        self._encode = msgspec.msgpack.Encoder().encode
        self._read_header = msgspec.msgpack.Decoder(Header).decode
        self._start = b""
        # The latest headers, by their bytes.
        self._headers: dict[bytes, Header] = {}

    def identify(self, uid: str, incarnation: int) -> None:
        """Set the identity of this node for everything written from now on."""
        self.uid = uid
        self.incarnation = incarnation
        self.write_version(self.version)

    def write_version(self, version: int) -> None:
        """Write this version from now on."""
        self.version = version
        header = self._encode(Header(self.cluster, self.node, self.uid, self.incarnation))
        self._start = bytes((version, OLDEST)) + len(header).to_bytes(2, "big") + header

    def write(self, body: object) -> bytes:
        """Return header and body as bytes. ``body`` is a struct of this module, or a tuple with its fields."""
        return self._start + self._encode(body)

    def body(self, body: object) -> bytes:
        """Return the body alone as bytes."""
        return self._encode(body)

    def reader(self, kind: type[BodyT]) -> Reader[BodyT]:
        return Reader(self, kind)

    def header(self, data: bytes) -> Header | None:
        """Return the header, or ``None`` if it was refused."""
        if len(data) < _FIXED:
            self.refusals.add(TRUNCATED, "-", "-")
            return None
        if data[1] > VERSION:
            self.refusals.add(NEWER_VERSION, "-", "-")
            return None
        if data[0] < OLDEST:
            self.refusals.add(OLDER_VERSION, "-", "-")
            return None
        end = _FIXED + (data[2] << 8 | data[3])
        raw = data[_FIXED:end]
        header = self._headers.get(raw)
        if header is not None:
            return header
        try:
            header = self._read_header(raw)
        except UNREADABLE:
            self.refusals.add(TRUNCATED if len(data) < end else MALFORMED, "-", "-")
            return None
        if header.cluster != self.cluster:
            self.refusals.add(OTHER_CLUSTER, header.node, "cluster.name")
            return None
        if len(self._headers) >= _REMEMBERED:
            self._headers.clear()
        self._headers[raw] = header
        return header


# -------------------------------------------------------------------- messages

_LONG_AGO: Final = -10_000_000_000.0
_FAR_AHEAD: Final = 10_000_000_000.0


def valid_time(time: float) -> bool:
    """Return whether this is a date or a duration with which it is safe to calculate; NaN is not."""
    return _LONG_AGO < time < _FAR_AHEAD


def valid_message(topic: str, qos: int, properties: dict[int, Any] | None) -> bool:
    """Return whether a client could have published this message. The form of messages from other nodes does not ensure
    that."""
    return 0 <= qos <= 2 and valid_name(topic) and (not properties or of_publish(properties) is not None)


def valid_body(body: records.StoredBody) -> bool:
    """Return whether a client could have published this stored message, as ``valid_message`` does."""
    return valid_message(body.topic, body.qos, body.properties) and valid_time(body.timestamp)


# --------------------------------------------------------------------- members


class Heartbeat(msgspec.Struct, array_like=True, frozen=True):
    """A heartbeat. ``versions`` are the oldest and the newest version that the node reads. ``hears`` has the keys of
    the nodes that it hears. ``leaving``: the node is stopping properly."""

    number: int
    versions: tuple[int, int]
    hears: list[str]
    leaving: bool = False


class MemberRecord(msgspec.Struct, array_like=True, frozen=True):
    """The record of a node in bucket ``members``. ``started`` is in Unix seconds. ``durable``: the data, and so their
    ``uid``, outlive the process. ``rack`` is setting ``cluster.rack``, or ``None`` if the node keeps no copies of
    others.

    ``forced_out``: an operator has removed the node, and it may not come back with this ``uid``. It may not come back
    with one of ``refused_uids`` either: nodes of this name that were forced out before, the newest last. A record
    without a ``uid`` remains when the last node of this name has left.
    """

    node: str
    uid: str
    incarnation: int
    host: str
    pid: int
    started: float
    version: str
    forced_out: bool = False
    refused_uids: tuple[str, ...] = ()
    durable: bool = False
    rack: str | None = None


# ----------------------------------------------------------------------- calls


class Request(msgspec.Struct, array_like=True, frozen=True):
    """A call. ``number`` is chosen by the calling node, and never used again. ``offset`` is the position of the
    requested rest of the answer. A request without a reply subject confirms that the whole answer has arrived."""

    number: int
    method: str
    argument: bytes
    offset: int = 0


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a call, or a part of it. ``failure`` says why the call failed, and is empty if it succeeded.
    ``size`` is the size of the whole answer, and ``part`` its bytes from the requested offset on."""

    failure: str
    size: int
    part: bytes


# ---------------------------------------------------------------------- routes


class NodeRoute(msgspec.Struct, array_like=True, frozen=True):
    """A value of bucket ``routes``: a node has subscribers of this filter. For a Shared Subscription (``$share/...``),
    ``members`` is the number of members that the node has, and ``connected`` how many of them are connected.
    ``durable``: a durable session has subscribed to the filter, or had while the filter had subscribers there. Messages
    for other filters do not have to survive the node."""

    filter: str
    members: int = 0
    connected: int = 0
    durable: bool = False


# ----------------------------------------------------------------------- links


class PublisherRecord(msgspec.Struct, array_like=True, frozen=True):
    """The publisher of a message: ``mqtt.message.Publisher``."""

    client_id: str
    username: str | None
    proved_by: str
    mountpoint: str
    listener: str
    peer_host: str
    proto_ver: int
    is_superuser: bool


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """The mark of a node: after it in the node's links, messages for this client's session are for ``node``. ``epoch``
    is the epoch of the key there.

    In a link, on disk and in a frame, a mark is a message of QoS 2 to ``ADDRESS``, so that it keeps its place among
    the messages (docs/decisions/0224)."""

    ADDRESS: ClassVar[str] = "$moved"

    client_id: str
    node: str
    epoch: int

    def message(self) -> Message:
        """Return the message that is this mark."""
        return Message(self.ADDRESS, msgspec.msgpack.encode(self), 2)


class MessageRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message. ``flags`` has the QoS in two bits, and RETAIN as the third. ``publisher`` is an index in the frame, or
    -1 if the node itself is the publisher. ``age`` is the time in milliseconds since the message was published. If
    ``group`` is set, the message is only for a member of this Shared Subscription, or only for one session, with these
    Subscription ``identifiers``. ``waited`` is the least time in milliseconds for which the message was in the link
    while that was closed."""

    topic: str
    payload: bytes
    flags: int
    publisher: int
    age: int
    id: str
    properties: dict[int, Any] | None = None
    hops: int = 0
    group: str = ""
    identifiers: tuple[int, ...] = ()
    waited: int = 0

    @property
    def is_mark(self) -> bool:
        """Return whether this message is the mark of a node."""
        return self.group == Mark.ADDRESS

    def mark(self) -> Mark:
        """Decode the mark. Raises one of ``UNREADABLE``."""
        return msgspec.msgpack.decode(self.payload, type=Mark)


class RunRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages of one publisher as PUBLISH packets, as it sent them or could have sent them: everything about them is
    in Topic Names, payloads, properties and flags.

    ``before`` is the index in the frame of the message that follows. ``version`` is the MQTT version of the packets.
    ``age`` and ``waited`` are those of ``MessageRecord``. If ``topic`` is set, all ``count`` messages have this topic
    and the same QoS, 0 or 1. ``ids`` has the id of each message, and is empty if they have none. If ``id_number`` is
    set, ``ids`` is empty, too: the ids consist of ``id_prefix`` and this number or the following ones.
    """

    before: int
    publisher: int
    version: int
    age: int
    ids: list[str]
    packets: bytes
    topic: str = ""
    count: int = 0
    id_prefix: str = ""
    id_number: int = 0
    waited: int = 0


class Frame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages for another node; ``runs`` are those that travel as packets. ``number`` grows with every frame. Messages
    of QoS 1 and 2 have the sequence numbers from ``first`` on; no message has a number between ``after`` and ``first``.
    If the frame is larger than NATS allows, it travels in several frames that have nothing but a ``part``: its index,
    the number of parts, and its bytes."""

    number: int
    after: int
    first: int
    publishers: list[PublisherRecord]
    messages: list[MessageRecord]
    runs: list[RunRecord]
    part: tuple[int, int, bytes] | None = None


class LinkAck(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An acknowledgement to the node with this ``uid`` and ``incarnation``. ``frame`` is the number of the newest frame
    that has arrived. All messages up to ``sequence`` are on disk. ``gap``: the messages after ``sequence`` are
    missing."""

    uid: str
    incarnation: int
    frame: int
    sequence: int
    gap: bool = False


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The question that opens a link. ``after`` is the number before the first message that the link has to send, for a
    node that does not know the link. ``acked`` is the number up to which all messages were acknowledged since this node
    started. For messages that do not have to survive, the acknowledgement is not on disk."""

    after: int
    acked: int = 0


class HelloAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The answer that opens a link. ``taken`` is the number of the last message that has arrived, and all messages up
    to ``stored`` are on disk."""

    taken: int
    stored: int


# ------------------------------------------------------------------- session_keys


class SessionKey(msgspec.Struct, array_like=True, frozen=True):
    """A value of bucket ``sessions``: the key of a session. For example, the key of ``pump-7`` names node B, whose data
    has this ``uid``.

    ``node`` is empty if no node has the session; parts of it that other nodes still have are void then. ``owner`` is
    the user of the session (``ClientInfo.owner``). ``clean_start``: the session is new, and everything that other nodes
    had before is void.

    ``earlier`` has the nodes without which the session continued, and whether the part that each has is still needed.
    While there are such nodes, the key stays when the session ends, so that they do not mistake their part for the
    session. ``giver`` is the node from which the session was still arriving when the key was written. If the session
    continues without ``node``, ``giver`` may have a part of it, too.
    """

    client_id: str
    node: str
    uid: str
    owner: str = ""
    clean_start: bool = False
    earlier: dict[str, bool] = {}
    giver: str = ""


class Here(msgspec.Struct, array_like=True, frozen=True):
    """A client has connected. If two nodes have the client, the one with the higher ``stamp`` stays connected.
    ``owner`` is that of ``ClientInfo``."""

    client_id: str
    stamp: int
    owner: str
    clean_start: bool


class HereBatch(msgspec.Struct, array_like=True, frozen=True):
    """Clients that have connected. ``number`` is the number of this message of the node; if ``last`` is set, it is
    repeated for nodes that have missed it. ``stamp`` is the highest stamp that the node has seen."""

    number: int
    last: bool
    stamp: int
    clients: list[Here]


class SendAway(msgspec.Struct, array_like=True, frozen=True):
    """The request to disconnect the client with this stamp: the session belongs to ``owner``."""

    client_id: str
    stamp: int
    owner: str


class WillRecord(msgspec.Struct, array_like=True, frozen=True):
    """A value of bucket ``wills``. ``published_by`` is the other node that has published the Will, if one has."""

    client_id: str
    will: records.WillStored
    published_by: str = ""
