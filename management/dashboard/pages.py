"""Pages: the files of the dashboard over HTTP, with the headers that limit the page's permissions in a browser."""

import logging
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from aiohttp import web

from taipan.broker.transport.listener import Listener

from ..http.routes import decode_segment
from ..operations.refusal import Refusal
from .static_files import ENCODINGS, INDEX, StaticFile, StaticFiles, StaticFilesError

logger = logging.getLogger(__name__)

BUILT: Final = Path(__file__).parent / "static"
"""The directory in which a build stores the page."""
_BASE: Final = b'<base href="/">'
_HOST: Final = re.compile(r"([0-9A-Za-z](?:[0-9A-Za-z.-]*[0-9A-Za-z])?)(?::\d+)?")
_OURS: Final = "script-src 'self'; style-src 'self'"
_OTHERS: Final = "script-src 'self'; style-src 'self' 'unsafe-inline'"
_OTHERS_EVAL: Final = "script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'"
_POLICY: Final = (
    "default-src 'self'; {code}; img-src 'self' data:; font-src 'self' data:;"
    " connect-src {connect}; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_IMMUTABLE: Final = "public, max-age=31536000, immutable"
_NOT_BUILT: Final = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Taipan</title></head>
<body>
<h1>The dashboard is not built</h1>
<p>This node runs, and its HTTP API answers here and at the management port. The files of the dashboard's page are not
in <code>{directory}</code>.</p>
<p>In a checkout, <code>make dashboard</code> builds them; then load this page again. A wheel of Taipan has them
already. <code>dashboard.static_dir</code> in the configuration serves another directory.</p>
</body>
</html>
"""


class Pages:
    """Answers requests that are not for the API: with files by their path, and with the index for every other path.

    ``below``: the first segment of their paths, empty for all."""

    def __init__(self, directory: str, listeners: Sequence[Listener], below: str = "", eval: bool = False) -> None:
        """``directory``: ``dashboard.static_dir``. ``listeners``: the MQTT listeners that the page may connect to.
        ``eval``: ``dashboard.static_dir_eval``."""
        self._directory = Path(directory) if directory else BUILT
        self._eval = eval and directory != ""
        self._code = _OTHERS_EVAL if self._eval else _OTHERS if directory else _OURS
        self._files = StaticFiles(self._directory)
        self._listeners = listeners
        self._below = below

    def read(self) -> None:
        """Read the files; an error is logged in one line."""
        try:
            self._files.read()
        except StaticFilesError as error:
            logger.warning("dashboard_not_served error=%s setting=dashboard.static_dir", error)
            return
        if INDEX not in self._files.files:
            logger.warning(
                "dashboard_not_built directory=%s detail=%s",
                self._directory,
                "make dashboard builds it; the node continues",
            )
        elif self._eval:
            logger.info("dashboard_eval_allowed directory=%s setting=dashboard.static_dir_eval", self._directory)

    def share(self, other: "Pages") -> None:
        """Serve the files that ``other`` has read."""
        self._files = other._files

    def answer(self, request: web.Request, segments: list[str]) -> web.Response | None:
        """``segments``: the segments as received, still encoded."""
        if self._below:
            if segments[:1] != [self._below]:
                return None
            segments = segments[1:]
        if request.method not in ("GET", "HEAD") or segments[:1] == ["api"]:
            return None
        try:
            names = [decode_segment(segment) for segment in segments]
        except Refusal:
            return None
        if any(name in (".", "..") or "\0" in name for name in names):
            return None
        name = "/".join(names) or INDEX
        found = self._files.files.get(name)
        if found is None and name != INDEX and "." in name.rpartition("/")[2]:
            # The file does not exist, unless a browser requests the path as a page.
            if "text/html" not in request.headers.get("Accept", ""):
                return None
        if found is None or name == INDEX:
            if self._files.changed:
                self.read()
            found = self._files.files.get(INDEX)
        return self._not_built(request) if found is None else self._file(request, found)

    def _file(self, request: web.Request, file: StaticFile) -> web.Response:
        content, tag = file.content, file.tag
        encoding = ""
        if self._below and _BASE in content and file is self._files.files.get(INDEX):
            content = content.replace(_BASE, f'<base href="/{self._below}/">'.encode(), 1)
            tag += "-" + self._below
        elif file.encoded:
            encoding = _preferred(request.headers.get("Accept-Encoding", ""), file.encoded)
            if encoding:
                content = file.encoded[encoding]
                tag += "-" + encoding
        headers = self._headers(request)
        headers["ETag"] = f'"{tag}"'
        headers["Cache-Control"] = _IMMUTABLE if file.immutable else "no-cache"
        if file.encoded:
            headers["Vary"] = "Accept-Encoding"
        if _has_tag(request.headers.get("If-None-Match", ""), tag):
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = file.content_type
        if encoding:
            headers["Content-Encoding"] = encoding
        return web.Response(body=content, headers=headers)

    def _not_built(self, request: web.Request) -> web.Response:
        text = _NOT_BUILT.format(directory=escape(str(self._directory)))
        headers = {**self._headers(request), "Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"}
        return web.Response(body=text.encode(), headers=headers)

    def _headers(self, request: web.Request) -> dict[str, str]:
        policy = _POLICY.format(code=self._code, connect=" ".join(["'self'", *self._websockets(request)]))
        return {
            "Content-Security-Policy": policy,
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
        }

    def _websockets(self, request: web.Request) -> list[str]:
        """Return MQTT's WebSocket listeners under the hostname of the request. A policy cannot contain anything but
        hostnames, for example no IPv6 addresses; in that case any host is allowed for these ports."""
        host = _HOST.fullmatch(request.headers.get("Host", ""))
        name = host[1] if host else "*"
        return [
            f"{listener.kind.scheme}://{name}:{listener.port}"
            for listener in self._listeners
            if listener.kind.websocket and listener.running
        ]


def _preferred(accepted: str, encoded: dict[str, bytes]) -> str:
    """Return the preferred encoding of those available, ``""`` for none."""
    wanted: dict[str, bool] = {}
    for part in accepted.split(","):
        name, _, weight = part.partition(";")
        wanted[name.strip().lower()] = re.fullmatch(r"\s*q=0(\.0*)?\s*", weight) is None
    for encoding in ENCODINGS:
        if encoding in encoded and wanted.get(encoding, wanted.get("*", False)):
            return encoding
    return ""


def _has_tag(given: str, tag: str) -> bool:
    """Return whether ``If-None-Match`` contains the tag."""
    tags = [each.strip().removeprefix("W/") for each in given.split(",")]
    return "*" in tags or f'"{tag}"' in tags
