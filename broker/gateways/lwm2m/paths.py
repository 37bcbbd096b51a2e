"""Paths of LwM2M: ``/3/0/1`` is resource 1 in instance 0 of object 3; a fourth number is an instance of a resource."""

from typing import Final

MAX_ID: Final = 65_535
OBJECT: Final = 1
INSTANCE: Final = 2
RESOURCE: Final = 3
RESOURCE_INSTANCE: Final = 4
"""How many numbers the path of each kind has."""

Path = tuple[int, ...]


class BadPath(ValueError):
    """A text is not a path; the message says why."""


def identifier(text: str) -> int:
    """Return one number of a path. Raises BadPath."""
    if not text.isascii() or not text.isdecimal() or len(text) > 5 or int(text) > MAX_ID:
        raise BadPath(f"{text[:20]!r} is not a number from 0 to {MAX_ID}")
    return int(text)


def parse(text: str, longest: int = RESOURCE_INSTANCE) -> Path:
    """Return the numbers of ``/3/0/1`` or ``3/0/1``; ``/`` has none. Raises BadPath."""
    inner = text.strip("/")
    if not inner:
        return ()
    parts = inner.split("/", longest + 1)
    if len(parts) > longest:
        raise BadPath(f"{text[:60]!r} has more than {longest} numbers")
    return tuple([identifier(part) for part in parts])


def text_of(path: Path) -> str:
    """Return ``/3/0/1``."""
    return "/" + "/".join(map(str, path))
