"""StaticFiles: the files of a directory, read once, by the path under which a browser requests them.

Only files that are in the directory when it is read can be requested, so no path leads out of it."""

import hashlib
import re
from pathlib import Path
from typing import Final, NamedTuple

INDEX: Final = "index.html"
MAX_FILES: Final = 10_000
MAX_BYTES: Final = 134_217_728
"""Limit for all files together, in memory."""
ENCODINGS: Final = {"br": ".br", "gzip": ".gz"}
"""The encodings of HTTP, in order of preference; and the suffix of a file that was created next to the plain one."""
_HASHED: Final = re.compile(r"[.-](?=[0-9A-Za-z_-]*[0-9A-Z])[0-9A-Za-z_-]{8,}\.\w+(\.map)?")
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "eot": "application/vnd.ms-fontobject",
    "gif": "image/gif",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "map": "application/json",
    "mjs": "text/javascript; charset=utf-8",
    "png": "image/png",
    "svg": "image/svg+xml",
    "ttf": "font/ttf",
    "txt": "text/plain; charset=utf-8",
    "wasm": "application/wasm",
    "webmanifest": "application/manifest+json",
    "webp": "image/webp",
    "woff": "font/woff",
    "woff2": "font/woff2",
}


class StaticFilesError(Exception):
    """The directory cannot be served; the message is one line."""


class StaticFile(NamedTuple):
    """``encoded``: the same content, by the HTTP name of the encoding. ``immutable``: other content has another
    name."""

    content: bytes
    encoded: dict[str, bytes]
    content_type: str
    tag: str
    immutable: bool


class StaticFiles:
    """``files``: the files by path, such as ``assets/index-BxY3kLm9.js``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: object = None
        self.files: dict[str, StaticFile] = {}

    @property
    def changed(self) -> bool:
        """Return whether the index has changed since it was read."""
        return self._index_state() != self._seen

    def _index_state(self) -> object:
        try:
            state = (self._directory / INDEX).stat()
        except OSError:
            return None
        return state.st_ino, state.st_mtime_ns, state.st_size

    def read(self) -> None:
        """Read all files again. Links that lead out of the directory are left out. Raises StaticFilesError."""
        self._seen = self._index_state()
        root = self._directory.resolve()
        found: dict[str, bytes] = {}
        size = 0
        try:
            for place in sorted(self._directory.rglob("*")):
                if not place.is_file() or not place.resolve().is_relative_to(root):
                    continue
                name = place.relative_to(self._directory).as_posix()
                if any(part.startswith(".") for part in name.split("/")):
                    continue
                size += place.stat().st_size
                if size > MAX_BYTES or len(found) >= MAX_FILES:
                    raise StaticFilesError(f"{self._directory}: more than {MAX_FILES} files or {MAX_BYTES} bytes")
                found[name] = place.read_bytes()
        except OSError as error:
            raise StaticFilesError(f"{self._directory}: {error.strerror or error}") from None
        self.files = {name: _file(name, content, found) for name, content in found.items()}


def _file(name: str, content: bytes, all_files: dict[str, bytes]) -> StaticFile:
    encoded = {encoding: all_files[name + end] for encoding, end in ENCODINGS.items() if name + end in all_files}
    kind = _TYPES.get(name.rpartition(".")[2].lower(), "application/octet-stream")
    last = name.rpartition("/")[2]
    immutable = "/" in name and _HASHED.search(last) is not None
    return StaticFile(content, encoded, kind, hashlib.sha256(content).hexdigest()[:24], immutable)
