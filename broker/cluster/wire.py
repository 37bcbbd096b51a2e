"""Wire: the form of everything that goes between nodes, as messages and as values of buckets.

The first byte is the version of the form, the second the oldest version that can read it, then comes the length of the
header in two bytes, the header and the body, both MessagePack. A field added at the end of a struct with a default is
no new version; anything else is.
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
"""What decoding raises where bytes are not what they should be: text that is no UTF-8, and arrays in arrays without an
end, have errors of their own."""

VERSION: Final = 1
"""Of what this node writes, unless a node of the cluster cannot read it yet."""
OLDEST: Final = 1
"""The oldest version that this node reads, and that it can write."""
OVERHEAD: Final = 4096
"""Bytes for header and everything else beside a body, whatever names are in it."""

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
"""Seconds between two lines of the log about the same."""


def node_key(node: str) -> str:
    """The name of a node as a part of subjects and keys."""
    return blake2b(node.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def thing_key(thing: str) -> str:
    """A client identifier, a filter or a topic as a key of a bucket."""
    return blake2b(thing.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Header(msgspec.Struct, array_like=True, frozen=True):
    """Who wrote it. ``uid`` and ``incarnation``: as in ``core.cluster.Member``."""

    cluster: str
    node: str
    uid: str
    incarnation: int


class Refusals:
    """Counts what is refused as ``cluster_<reason>``, and logs it, the same once a minute."""

    def __init__(self, counts: Reasons, now: Callable[[], float]) -> None:
        self._counts = counts
        self._now = now
        # (reason, whose) -> when the next line may come
        self._told: dict[tuple[str, str], float] = {}

    def count(self, reason: str) -> None:
        """Count only: it is put right, and may come often."""
        self._counts.add("cluster_" + reason)

    def add(self, reason: str, node: str, setting: str, times: int = 1) -> None:
        """``node``: whose it was, ``setting``: the key that decides about it."""
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
    """Decodes what has a body of one type."""

    __slots__ = ("_decode", "_wire")

    def __init__(self, wire: "Wire", kind: type[BodyT]) -> None:
        self._wire = wire
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def message(self, data: bytes) -> tuple[Header, BodyT] | None:
        """From another node as it is now; ``None``: it was refused."""
        header = self._wire.header(data)
        if header is None or not self._wire.admits(header):
            return None
        return self._body(header, data)

    def value(self, data: bytes) -> tuple[Header, BodyT] | None:
        """Out of a bucket: whoever wrote it, this node too; ``None``: it cannot be read."""
        header = self._wire.header(data)
        return None if header is None else self._body(header, data)

    def _body(self, header: Header, data: bytes) -> tuple[Header, BodyT] | None:
        try:
            return header, self._decode(memoryview(data)[_FIXED + (data[2] << 8 | data[3]) :])
        except UNREADABLE:
            self._wire.refusals.add(MALFORMED, header.node, "-")
            return None


class Wire:
    """Writes and reads in the name of one node. ``identify`` comes first.

    ``admits``: whether a node may speak at present; ``members`` sets it. ``version``: what is written, the newest that
    all nodes read.
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
        # The headers that came lately, by their bytes.
        self._headers: dict[bytes, Header] = {}

    def identify(self, uid: str, incarnation: int) -> None:
        """Who this node is, in all that is written from now on."""
        self.uid = uid
        self.incarnation = incarnation
        self.write_version(self.version)

    def write_version(self, version: int) -> None:
        """Write this version from now on."""
        self.version = version
        header = self._encode(Header(self.cluster, self.node, self.uid, self.incarnation))
        self._start = bytes((version, OLDEST)) + len(header).to_bytes(2, "big") + header

    def write(self, body: object) -> bytes:
        """``body``: a struct of this module, or a tuple with its fields."""
        return self._start + self._encode(body)

    def body(self, body: object) -> bytes:
        """The body alone."""
        return self._encode(body)

    def reader(self, kind: type[BodyT]) -> Reader[BodyT]:
        return Reader(self, kind)

    def header(self, data: bytes) -> Header | None:
        """Who wrote it; ``None``: it was refused."""
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
    """Whether it is a date, or a distance of time, that can be reckoned with; NaN is none."""
    return _LONG_AGO < time < _FAR_AHEAD


def valid_message(topic: str, qos: int, properties: dict[int, Any] | None) -> bool:
    """Whether a client could have published that. The form of what comes from another node does not say so."""
    return 0 <= qos <= 2 and valid_name(topic) and (not properties or of_publish(properties) is not None)


def valid_body(body: records.StoredBody) -> bool:
    """As ``valid_message``, of a message as it is stored."""
    return valid_message(body.topic, body.qos, body.properties) and valid_time(body.timestamp)


# --------------------------------------------------------------------- members


class Heartbeat(msgspec.Struct, array_like=True, frozen=True):
    """A node lives. ``versions``: the oldest and the newest that it reads. ``hears``: keys of the nodes that it hears.

    ``leaving``: it stops now, in order."""

    number: int
    versions: tuple[int, int]
    hears: list[str]
    leaving: bool = False


class MemberRecord(msgspec.Struct, array_like=True, frozen=True):
    """What is known of a node in bucket ``members``. ``started``: unix seconds. ``forced_out``: by an operator; it may
    not come back with this ``uid``, nor with one of ``refused_uids``: nodes of this name that were forced out before,
    the newest last. ``durable``: its data, and so the ``uid``, outlive the process. Without a ``uid``: the last node of
    this name has left."""

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


# ----------------------------------------------------------------------- calls


class Request(msgspec.Struct, array_like=True, frozen=True):
    """``number``: of this asker, never used again. ``offset``: the rest of its answer from there on is asked for.

    Without a subject to reply to: all of the answer has come."""

    number: int
    method: str
    argument: bytes
    offset: int = 0


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """``failure``: why it could not be done, empty: it was. ``size``: of the whole answer; ``part``: of it, from the
    offset that was asked for."""

    failure: str
    size: int
    part: bytes


# ---------------------------------------------------------------------- routes


class NodeRoute(msgspec.Struct, array_like=True, frozen=True):
    """Bucket ``routes``: a node has subscribers of this filter. Of a Shared Subscription (``$share/...``) it has so
    many ``members``, of which so many are ``connected``. ``durable``: a durable session has it, or had since the filter
    has subscribers there; any other filter's messages need not survive the node."""

    filter: str
    members: int = 0
    connected: int = 0
    durable: bool = False


# ----------------------------------------------------------------------- links


class PublisherRecord(msgspec.Struct, array_like=True, frozen=True):
    """Who published a message: ``mqtt.message.Publisher``."""

    client_id: str
    username: str | None
    proved_by: str
    mountpoint: str
    listener: str
    peer_host: str
    proto_ver: int
    is_superuser: bool


class MessageRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message. ``flags``: QoS in two bits, RETAIN as the third. ``publisher``: index in the frame, -1 the node
    itself. ``age``: milliseconds since it was published. ``group``: it is for a member of this Shared Subscription
    only, or for a session, with these Subscription ``identifiers``. ``waited``: milliseconds for which the
    message was at least in the link, as the link was closed."""

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
    """Messages of one publisher as the PUBLISH packets that it sent, or that it could have sent, with nothing that
    Topic Names, payloads, properties and their flags do not say. ``before``: the place in the frame's messages of the
    one that follows. ``version``: of the packets. ``age``: as of a message. ``ids``: of each, or none at all.
    ``topic``: of all ``count`` of them, which have one QoS, 0 or 1; empty: that is not said. ``id_number``: of the
    first; then the ids are those of this ``id_prefix`` with this number and the following ones, and ``ids`` says
    none. ``waited``: as of a message."""

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
    """Messages for another node, ``runs`` of them as packets. ``number`` grows with every frame. Those of QoS 1 and 2
    have the sequence numbers from ``first`` on; there is none between ``after`` and ``first``. ``part``: of the body of
    a frame that is larger than NATS takes, this piece of so many, with these bytes; then there is nothing else."""

    number: int
    after: int
    first: int
    publishers: list[PublisherRecord]
    messages: list[MessageRecord]
    runs: list[RunRecord]
    part: tuple[int, int, bytes] | None = None


class LinkAck(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """To the node with this ``uid`` and ``incarnation``. ``frame``: the newest that came. ``sequence``: all up to this
    number is on disk. ``gap``: the messages after ``taken`` are missing."""

    uid: str
    incarnation: int
    frame: int
    sequence: int
    gap: bool = False


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """A link begins. ``after``: the last number before those that it has to send, should nothing be known of it.
    ``acked``: up to which number all has been acknowledged, in this start of the node; what need not survive is
    acknowledged without a word on disk."""

    after: int
    acked: int = 0


class HelloAnswer(msgspec.Struct, array_like=True, frozen=True):
    """``taken``: the last number that came; ``stored``: up to which all is on disk."""

    taken: int
    stored: int


# ------------------------------------------------------------------- ownership


class Owned(msgspec.Struct, array_like=True, frozen=True):
    """A value of bucket ``sessions``: the key of a session.

    ``node``, ``uid``: the node that has the session, and its data. ``node`` is empty if no node has the session; what
    other nodes still have of it is void then. ``owner``: the user of the session (``ClientInfo.owner``).
    ``clean_start``: the session is new, and what other nodes had before is void. ``earlier``: the nodes without
    which the session went on, and whether what they still have is wanted. While there are such nodes, the key stays
    when the session ends, so that they do not take what they have for the session. ``giver``: the node that the session
    came from, if it was not certain that all of it had come. If the session goes on without ``node``, ``giver`` may
    have something for it, too.
    """

    client_id: str
    node: str
    uid: str
    owner: str = ""
    clean_start: bool = False
    earlier: dict[str, bool] = {}
    giver: str = ""


class Here(msgspec.Struct, array_like=True, frozen=True):
    """A client has connected. ``stamp``: the higher one stays. ``owner``, ``username``: see ``ClientInfo``."""

    client_id: str
    stamp: int
    owner: str
    username: str | None
    clean_start: bool


class HereBatch(msgspec.Struct, array_like=True, frozen=True):
    """``number``: of this message of this node; ``last``: it only says which was the last. ``stamp``: the highest that
    the node has seen."""

    number: int
    last: bool
    stamp: int
    clients: list[Here]


class SendAway(msgspec.Struct, array_like=True, frozen=True):
    """The client with this stamp is to go: the session belongs to ``owner``."""

    client_id: str
    stamp: int
    owner: str


class WillRecord(msgspec.Struct, array_like=True, frozen=True):
    """Bucket ``wills``. ``published_by``: another node has published it."""

    client_id: str
    will: records.WillStored
    published_by: str = ""
