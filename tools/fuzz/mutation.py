"""Derives invalid input from valid packets."""

from random import Random

from tests.packets import CLIENT, Row, rows

_INTERESTING = (0x00, 0x01, 0x02, 0x03, 0x7F, 0x80, 0x81, 0xC0, 0xE2, 0xED, 0xF4, 0xFE, 0xFF)
_LONGEST = 4096


class Corpus:
    """The rows of the packet table that a client may send, and input derived from them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._rows = [row for row in rows(CLIENT) if len(row.data) <= _LONGEST]
        self._connects = [row for row in self._rows if row.fresh and row.expect_code is None]
        self._others = {
            version: [row for row in self._rows if not row.fresh and row.version == version] for version in (3, 4, 5)
        }
        self._good = {
            version: [row.data for row in rows if row.expect_code is None and row.data[0] >> 4 != 14]
            for version, rows in self._others.items()
        }

    def connect(self) -> Row:
        """Return a valid CONNECT."""
        return self._random.choice(self._connects)

    def good(self, version: int) -> bytes:
        """Return a packet that is valid after a CONNECT of that version, other than DISCONNECT."""
        return self._random.choice(self._good[version])

    def input(self, version: int) -> bytes:
        """Return input to send; ``version`` is 0 on a new connection."""
        random = self._random
        dice = random.random()
        if dice < 0.1:
            return random.randbytes(random.randint(1, 200))
        if version == 0:
            data = random.choice(self._rows if dice < 0.3 else self._connects).data
            version = random.choice((3, 4, 5))
        else:
            data = random.choice(self._others[version]).data
        for _ in range(random.randint(0, 3)):
            data += random.choice(self._others[version]).data
        for _ in range(random.choice((0, 1, 1, 1, 2, 3, 8))):
            data = self.mutate(data)
        return data

    def mutate(self, data: bytes) -> bytes:
        """Return ``data`` with one change."""
        random = self._random
        if not data:
            return bytes((random.choice(_INTERESTING),))
        at = random.randrange(len(data))
        kind = random.randrange(8)
        if kind == 0:
            return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]
        if kind == 1:
            return data[:at] + bytes((random.choice(_INTERESTING),)) + data[at + 1 :]
        if kind == 2:
            return data[:at] + bytes((random.randrange(256),)) + data[at:]
        if kind == 3:
            return data[:at] + data[at + random.randint(1, 4) :]
        if kind == 4:
            return data[:at]
        if kind == 5:
            part = data[at : at + random.randint(1, 32)]
            return data[:at] + part + data[at:]
        if kind == 6:
            # Lengths lie: the byte at ``at`` a little more or less.
            return data[:at] + bytes(((data[at] + random.choice((-2, -1, 1, 2))) & 0xFF,)) + data[at + 1 :]
        other = random.choice(self._rows).data
        return data[:at] + other[random.randrange(len(other)) :]

    def pieces(self, data: bytes) -> list[bytes]:
        """Split ``data``: whole, into single bytes, or into pieces of any size."""
        random = self._random
        kind = random.randrange(3)
        if kind == 0:
            return [data]
        if kind == 1:
            return [data[at : at + 1] for at in range(len(data))]
        found = []
        while data:
            size = random.randint(1, len(data))
            found.append(data[:size])
            data = data[size:]
        return found
