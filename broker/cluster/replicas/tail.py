"""LogTail: the newest batches of the log, kept in memory for the followers. Older ones are read from the file."""

from collections import deque
from typing import Final, NamedTuple

from ...persistence.log.check_file import Digests

KEPT_BYTES: Final = 4_194_304
"""Size in bytes of the batches that stay in memory although every follower has them."""
_MOST_BATCHES: Final = 65_536


class TailBatch(NamedTuple):
    """A batch. ``before``: the total size of all batches before it since the start."""

    number: int
    data: bytes
    access: Digests | None
    before: int


class LogTail:
    """``bytes``: total size of the batches. ``access_before``: the digests of the rows of access control before the
    first batch."""

    def __init__(self, last: int, most_bytes: int, access: Digests | None) -> None:
        """``last``: the number of the last batch before the tail. ``most_bytes``: maximum size. The newest batch always
        stays, because it may not be on disk yet."""
        self._batches: deque[TailBatch] = deque()
        self._most_bytes = most_bytes
        self._first = last + 1
        self._total = 0
        self.bytes = 0
        self.access_before = access

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def first(self) -> int:
        """The number of the first batch, or of the next one if there is none."""
        return self._first

    def append(self, number: int, data: bytes, access: Digests | None, needed: int) -> None:
        """Add the next batch. ``needed``: the oldest batch that acknowledgements still wait for on a follower."""
        assert number == self._first + len(self._batches)
        self._batches.append(TailBatch(number, data, access, self._total))
        self._total += len(data)
        self.bytes += len(data)
        self.trim(needed)

    def trim(self, needed: int) -> None:
        """Remove what does not have to be in memory."""
        batches = self._batches
        while len(batches) > 1 and (
            self.bytes > self._most_bytes
            or len(batches) > _MOST_BATCHES
            or (self.bytes > KEPT_BYTES and batches[0].number < needed)
        ):
            gone = batches.popleft()
            self.bytes -= len(gone.data)
            self._first += 1
            if gone.access is not None:
                self.access_before = gone.access

    def after(self, number: int) -> TailBatch | None:
        """Return the batch that follows ``number``, or ``None`` if it is not in memory."""
        place = number + 1 - self._first
        return self._batches[place] if 0 <= place < len(self._batches) else None

    def at(self, number: int) -> TailBatch | None:
        """Return batch ``number``, or ``None`` if it is not in memory."""
        return self.after(number - 1)

    def bytes_after(self, number: int) -> int:
        """Return the total size of the batches after ``number`` that are in memory."""
        following = self.after(number)
        if following is not None:
            return self._total - following.before
        return self.bytes if number < self._first else 0

    def access_after(self, number: int) -> Digests | None:
        """Return the digests of the rows of access control after batch ``number``, or ``None`` if they are not
        known."""
        if number < self._first - 1:
            return None
        known = self.access_before
        for batch in self._batches:
            if batch.number > number:
                break
            if batch.access is not None:
                known = batch.access
        return known

    def access_with(self, number: int) -> Digests | None:
        """Return the digests that a follower needs with batch ``number``: those of the batch, or all up to the last one
        before the tail. A batch that is read from the file may be in the tail as well."""
        if number == self._first - 1:
            return self.access_before
        batch = self.at(number)
        return None if batch is None else batch.access
