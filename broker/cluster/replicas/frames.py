"""The messages between an origin and a follower: the origin sends frames, the follower answers.

Each attempt to copy has a number, ``run``, which the origin chooses. Frames and answers of another run are ignored.
"""

import msgspec

from ...persistence.log.check_file import Digests


class BaseFrame(msgspec.Struct, array_like=True):
    """Base of all frames and answers; it is never sent itself."""

    run: int


class Begin(BaseFrame, tag=1):
    """Which batches does the follower have?"""


class Resume(BaseFrame, tag=2):
    """The batches after ``position`` follow. The copy deletes newer ones, which the origin never had on its disk. If
    ``empty`` is set, it deletes everything, because it is not a copy of this log. ``access``: the digests of the rows
    of access control after ``position``, if the origin knows them."""

    position: int
    empty: bool = False
    access: Digests | None = None


class CopiedBatch(BaseFrame, tag=3):
    """Part ``part`` of ``parts`` of a batch, which follows batch ``previous``. ``access``: as in
    ``SqliteLog.append``."""

    previous: int
    number: int
    part: int
    parts: int
    data: bytes
    access: Digests | None = None


class DropBatches(BaseFrame, tag=4):
    """The batches before ``before`` are no longer needed: newer ones contain the whole state."""

    before: int


class Ask(BaseFrame, tag=5):
    """How far is the follower? ``sent``: the last batch that was sent to it."""

    sent: int


class Forget(BaseFrame, tag=6):
    """The copy is not needed, because enough others are complete."""


Frame = Begin | Resume | CopiedBatch | DropBatches | Ask | Forget


class Have(BaseFrame, tag=1):
    """The newest batch of the copy and the one before it, each with its number and the CRC32 of its data, or 0 if there
    is none."""

    last: int
    crc: int
    previous: int
    previous_crc: int


class At(BaseFrame, tag=2):
    """Everything up to ``disk`` is on the follower's disk, and up to ``received`` has arrived. ``missing`` is set if
    something after that was lost on the way. ``trouble`` says why the follower's disk accepts nothing at present.
    ``first`` is the oldest batch of the copy."""

    disk: int
    received: int
    missing: bool = False
    trouble: str = ""
    first: int = 0


class CopyRefused(BaseFrame, tag=3):
    """The follower does not accept this run, for this ``reason``, or because the run is ``unknown`` to it."""

    reason: str
    unknown: bool = False


class HoldingCopy(BaseFrame, tag=4):
    """The follower has a copy to which nothing was sent for some time."""


Answer = Have | At | CopyRefused | HoldingCopy
