"""Wire: the form of everything that nodes exchange, as messages and as values of buckets.

The first byte is the version of the form, the second the oldest version that can read it. Then follow the length of the
header in two bytes, the header and the body, both MessagePack. A new field with a default at the end of a struct does
not need a new version; any other change does.
"""

import logging
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, Generic, TypeVar

import msgspec

from ..mqtt.properties import of_publish
from ..mqtt.topics import valid_name
from ..observability.metrics import Reasons
from ..persistence.log import records

logger = logging.getLogger(__name__)

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of decoding malformed bytes: text that is not UTF-8, and arrays nested without end, have errors of their
own."""

VERSION: Final = 1
"""The version that this node writes, unless a node of the cluster cannot read it yet."""
OLDEST: Final = 1
"""The oldest version that this node reads, and that it can write."""
OVERHEAD: Final = 4096
"""Bytes for the header and everything else besides a body, whatever names the header has."""

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
    """The writer of a message or value. ``uid`` and ``incarnation``: as in ``core.cluster.Member``."""

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
        """Count without a log line: the fault is corrected, and may be frequent."""
        self._counts.add("cluster_" + reason)

    def add(self, reason: str, node: str, setting: str, times: int = 1) -> None:
        """Count and log. ``node``: the sender. ``setting``: the setting that decides about it."""
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
        """Decode a message from another node that is admitted at present, or ``None`` if the message was refused."""
        header = self._wire.header(data)
        if header is None or not self._wire.admits(header):
            return None
        return self._body(header, data)

    def value(self, data: bytes) -> tuple[Header, BodyT] | None:
        """Decode a value of a bucket, whichever node wrote it, also this one, or ``None`` if it is not readable."""
        header = self._wire.header(data)
        return None if header is None else self._body(header, data)

    def _body(self, header: Header, data: bytes) -> tuple[Header, BodyT] | None:
        try:
            return header, self._decode(memoryview(data)[_FIXED + (data[2] << 8 | data[3]) :])
        except UNREADABLE:
            self._wire.refusals.add(MALFORMED, header.node, "-")
            return None


class Wire:
    """Writes and reads in the name of one node. Call ``identify`` first.

    ``admits``: whether messages of a node are accepted at present; ``members`` sets it. ``version``: the version that
    is written, the newest that all nodes read.
    """

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
        """Return header and body as bytes. ``body``: a struct of this module, or a tuple with its fields."""
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
    """Return whether this is a date or a duration that is safe to calculate with; NaN is not."""
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
    """A sign of life. ``versions``: the oldest and the newest that the node reads. ``hears``: keys of the nodes that it
    hears. ``leaving``: the node is stopping in order."""

    number: int
    versions: tuple[int, int]
    hears: list[str]
    leaving: bool = False


class MemberRecord(msgspec.Struct, array_like=True, frozen=True):
    """A node in bucket ``members``. ``started``: Unix seconds. ``forced_out``: by an operator; the node may not come
    back with this ``uid``, nor with one of ``refused_uids``. These are of nodes of this name that were forced out
    before, the newest last. ``durable``: the data, and so the ``uid``, outlive the process. ``rack``: setting
    ``cluster.rack``; None: the node keeps no copies of others. Without a ``uid``: the last node of this name has
    left."""

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
    """A call. ``number``: chosen by the calling node, never used again. ``offset``: where the requested rest of the
    answer begins.

    A request without a reply subject confirms that the whole answer has arrived."""

    number: int
    method: str
    argument: bytes
    offset: int = 0


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a call. ``failure``: why the call failed; empty: it succeeded. ``size``: of the whole answer.
    ``part``: the answer from the requested offset on."""

    failure: str
    size: int
    part: bytes


# ---------------------------------------------------------------------- routes


class NodeRoute(msgspec.Struct, array_like=True, frozen=True):
    """A value of bucket ``routes``: a node has subscribers of this topic filter. ``members``, ``connected``: of a
    Shared Subscription (``$share/...``), how many members the node has, and how many of them are connected.
    ``durable``: a durable session has subscribed to the filter, or had since the filter has subscribers there. Messages
    for other filters need not survive the node."""

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


class MessageRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message. ``flags``: QoS in two bits, RETAIN as the third. ``publisher``: index in the frame; -1: the node
    itself. ``age``: milliseconds since it was published. ``group``: the message is only for a member of this Shared
    Subscription, or for a session, with these Subscription ``identifiers``. ``waited``: milliseconds, at least, for
    which the message was in the link because that was closed."""

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


class RunRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages of one publisher as PUBLISH packets, as it sent them or could have sent them: everything about them is
    in Topic Names, payloads, properties and flags. ``before``: the index in the frame of the message that follows.
    ``version``: of the packets. ``age``, ``waited``: as in a message. ``ids``: of each message; empty if they have
    none. ``topic``: of all ``count`` messages, which have one QoS, 0 or 1; empty: not specified. ``id_number``: of the
    first message. If it is set, the ids consist of ``id_prefix`` and this number or the following ones, and ``ids`` is
    empty."""

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
    """Messages for another node, ``runs`` of them as packets. ``number`` grows with every frame. Messages of QoS 1 and
    2 have the sequence numbers from ``first`` on; no message has a number between ``after`` and ``first``. ``part``:
    index, number of parts, and bytes of a part of a frame that is larger than NATS allows. Such a frame has no other
    content."""

    number: int
    after: int
    first: int
    publishers: list[PublisherRecord]
    messages: list[MessageRecord]
    runs: list[RunRecord]
    part: tuple[int, int, bytes] | None = None


class LinkAck(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An acknowledgement to the node with this ``uid`` and ``incarnation``. ``frame``: the newest that has arrived.
    ``sequence``: all messages up to this number are on disk. ``gap``: the messages after ``sequence`` are missing."""

    uid: str
    incarnation: int
    frame: int
    sequence: int
    gap: bool = False


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The question that opens a link. ``after``: the number before the first that the link has to send, for a node that
    does not know the link. ``acked``: the number up to which all messages were acknowledged since this node started;
    for messages that need not survive, the acknowledgement is not on disk."""

    after: int
    acked: int = 0


class HelloAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The answer that opens a link. ``taken``: the last number that has arrived. ``stored``: all messages up to this
    number are on disk."""

    taken: int
    stored: int


# ------------------------------------------------------------------- session_keys


class SessionKey(msgspec.Struct, array_like=True, frozen=True):
    """A value of bucket ``sessions``: the key of a session.

    ``node``, ``uid``: the node that has the session, and its data. ``node`` is empty if no node has the session; the
    rest that other nodes still have of it is void then. ``owner``: the user of the session (``ClientInfo.owner``).
    ``clean_start``: the session is new, and anything that other nodes had before is void. ``earlier``: the nodes
    without which the session continued, and whether the rest that they have is still needed. While there are such
    nodes, the key stays when the session ends, so that they do not mistake their rest for the session. ``giver``: the
    node that the session came from, if it was not certain that the whole session had arrived. If the session continues
    without ``node``, ``giver`` may have a part of it, too.
    """

    client_id: str
    node: str
    uid: str
    owner: str = ""
    clean_start: bool = False
    earlier: dict[str, bool] = {}
    giver: str = ""


class Here(msgspec.Struct, array_like=True, frozen=True):
    """A client has connected. ``stamp``: the client with the higher one stays. ``owner``, ``username``: see
    ``ClientInfo``."""

    client_id: str
    stamp: int
    owner: str
    username: str | None
    clean_start: bool


class HereBatch(msgspec.Struct, array_like=True, frozen=True):
    """Clients that have connected. ``number``: of this message of this node. ``last``: the message only repeats the
    last number. ``stamp``: the highest that the node has seen."""

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
    """A value of bucket ``wills``. ``published_by``: the other node that has published the Will."""

    client_id: str
    will: records.WillStored
    published_by: str = ""
