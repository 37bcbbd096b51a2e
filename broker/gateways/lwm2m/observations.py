"""Observations: which paths of a device are observed, by the token of the request that has begun it."""

from collections.abc import Callable, Iterable
from typing import Final

from .commands import OBSERVE, DeviceRequest
from .paths import BadPath, Path, parse
from .settings import Lwm2mSettings

SETTING: Final = "max_observations"


class DeviceObservations:
    """Those of one device."""

    __slots__ = ("_most", "_tokens")

    def __init__(self, most: int) -> None:
        self._most = most
        self._tokens: dict[Path, bytes] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def refuses(self, request: DeviceRequest) -> str:
        """Return the setting that does not allow a request, which would begin another observation."""
        begins = request.observe == OBSERVE and request.path not in self._tokens
        return SETTING if begins and len(self._tokens) >= self._most else ""

    def begin(self, path: Path, token: bytes) -> None:
        """A request to observe is under way."""
        self._tokens[path] = token

    def end(self, path: Path, token: bytes = b"") -> bytes:
        """Forget an observation, if it is still the one with ``token``; return its token."""
        found = self._tokens.get(path, b"")
        if token and found != token:
            return b""
        self._tokens.pop(path, None)
        return found

    def clear(self, forget: Callable[[bytes], None]) -> None:
        """Forget all: a device that registers has none."""
        for token in self._tokens.values():
            forget(token)
        self._tokens.clear()

    def wanted(self, settings: Lwm2mSettings, objects: Iterable[str]) -> list[Path]:
        """Return the paths in ``auto_observe`` that the device has and that are not observed."""
        if settings.auto_observe is False:
            return []
        existing = _paths(objects)
        if settings.auto_observe is True:
            found = existing
        else:
            found = [path for path in settings.observed if any(_related(path, each) for each in existing)]
        return [path for path in dict.fromkeys(found) if path not in self._tokens]


def _paths(objects: Iterable[str]) -> list[Path]:
    found = []
    for each in objects:
        try:
            found.append(parse(each))
        except BadPath:
            continue
    return [path for path in found if path]


def _related(one: Path, other: Path) -> bool:
    """Return whether one of the paths is in the other."""
    return all(a == b for a, b in zip(one, other, strict=False))
