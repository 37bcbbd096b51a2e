"""The values of buckets ``rows`` and ``retained``, and the rows about them that only this node has."""

import msgspec

from ...persistence.log import records
from .bucket_life import Version
from .settling import BEFORE, Moment


class RowValue(msgspec.Struct, array_like=True, frozen=True):
    """A row in the form of the bucket. If the row comes from an earlier bucket, which was lost, ``version`` is its
    version there."""

    table: str
    key: str
    row: bytes
    version: Version | None = None


class RowVersion(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The version of a row of this node. ``gone``: the row was deleted in that version."""

    generation: int
    revision: int
    gone: bool

    @property
    def version(self) -> Version:
        return self.generation, self.revision


class RetainedValue(msgspec.Struct, array_like=True, frozen=True):
    """A retained message in the form of the bucket, where its time is a date. ``mountpoint`` is that of its publisher.
    If the message was written again after the loss of a bucket, ``version`` says how far the node had read the lost
    one. ``at`` is the date when the message was retained, or 0 if it is not known. This is later than the message's own
    date if it was delayed or copied. ``moment`` is the same time at the writing node."""

    body: records.StoredBody
    mountpoint: str
    version: Version | None = None
    at: float = 0.0
    moment: Moment = BEFORE


class Deletion(msgspec.Struct, array_like=True, frozen=True):
    """The value of a deletion. ``at`` is the date of the clear, or of the expired message. For each node that has
    answered the question about the clear, ``until`` has, by uid, the moment up to which its changes are older."""

    at: float
    until: dict[str, Moment] = {}


class UnwrittenTopic(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A topic with a change that the bucket may not have yet. ``base`` is the revision up to which this node had read
    the bucket. ``at`` is the date of the change, and ``moment`` the same time at this node."""

    topic: str
    base: int
    at: float
    moment: Moment


class UnwrittenRow(msgspec.Struct, array_like=True, frozen=True):
    """A row of table ``retained_changes``: changes that the bucket may not have yet. ``bucket`` is the bucket that this
    node had read then."""

    bucket: str
    topics: list[UnwrittenTopic]
