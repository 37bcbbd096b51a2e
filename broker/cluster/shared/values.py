"""The values of buckets ``rows`` and ``retained``, and the rows about them that only this node has."""

import msgspec

from ...persistence.log import records
from .bucket_life import Version
from .settling import BEFORE, Moment


class RowValue(msgspec.Struct, array_like=True, frozen=True):
    """A row as in the bucket. ``version`` is set if the row was in an earlier bucket, which was lost: the version that
    it had there."""

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
    """A retained message as in the bucket; its time is a date. ``mountpoint`` is that of its publisher. ``version`` is
    set if the message was written again after the loss of a bucket: how far the node had read the lost one. ``at`` is
    the date when the message was retained, which is later than its own date if it was delayed or copied, or 0 if it is
    not known. ``moment`` is the same time at the writing node."""

    body: records.StoredBody
    mountpoint: str
    version: Version | None = None
    at: float = 0.0
    moment: Moment = BEFORE


class Deletion(msgspec.Struct, array_like=True, frozen=True):
    """The value of a deletion. ``at`` is the date of the clear, or of the message that has expired. ``until`` has, by
    the uid of each node that has answered the question of the clear, the moment up to which its changes are older."""

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


class EarlierRow(msgspec.Struct, array_like=True, frozen=True):
    """A row of table ``retained_unwritten`` of an earlier version: one change, keyed by its topic."""

    bucket: str
    base: int
    at: float
    moment: Moment = BEFORE
