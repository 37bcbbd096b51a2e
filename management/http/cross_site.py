"""Cross-site requests: requests that a page of another site makes in its reader's browser, with the reader's
credentials."""

import logging
import re
from ipaddress import ip_address
from typing import Final

from aiohttp import web

from taipan.broker.loop.clock import Clock
from taipan.broker.observability.metrics import Reasons

from ..configuration.settings import ManagementSettings
from ..operations.refusal import WRONG, Refusal
from .envelope import path_of

logger = logging.getLogger(__name__)

SAY_EVERY: Final = 10.0
"""Seconds between two log lines about the same reason."""
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""The types of forms, which a page may send to another site without the browser asking that site first."""
_BROWSER: Final = ("Sec-Fetch-Mode", "Sec-Fetch-Dest", "Upgrade-Insecure-Requests")
"""Headers that browsers send with a form and programs do not send; no page can suppress them."""
_ORIGIN: Final = re.compile(r"(https?)://([^/@\s]+)", re.IGNORECASE)
_MAX_LENGTH: Final = 200


class CrossSite:
    """Refuses such requests before it checks credentials. A node has one; refusals are counted in ``refusals``."""

    def __init__(self, settings: ManagementSettings, clock: Clock, refusals: Reasons) -> None:
        self._clock = clock
        self._refusals = refusals
        self._logged: dict[
            str, tuple[float, int]
        ] = {}  # reason -> when the next line may be logged, number of refusals since the last line
        self.configure(settings)

    def configure(self, settings: ManagementSettings) -> None:
        """Apply ``host_names`` and ``allowed_origins``."""
        self._names = frozenset(name.lower().rstrip(".") for name in settings.host_names)
        self._origins = frozenset(origin.lower() for origin in settings.allowed_origins)

    def check(self, request: web.Request) -> None:
        """Raise Refusal 108 for a request that may come from a page of another site."""
        headers = request.headers
        if self._names:
            host = headers.get("Host", "")
            if not self._is_ours(host):
                self._refuse(request, "api_host", "host_names", f"no server named {host[:_MAX_LENGTH]!r} is here")
        if request.method in _SAFE:
            return  # It changes nothing, and no page of another site can read the answer.
        origin = headers.get("Origin")
        if origin is not None and origin.lower() in self._origins:
            return
        site = headers.get("Sec-Fetch-Site")
        if site is not None:
            # Set by the browser; behind a proxy that changes Host, only this header is correct.
            if site in ("same-origin", "none"):
                return
            whence = f"the request comes from a page of another origin ({origin or site})"
        elif origin is not None:
            if _is_same(origin, headers.get("Host", ""), request.secure):
                return
            whence = f"the request comes from a page of another origin ({origin})"
        elif _is_form(headers.get("Content-Type", "")) and any(name in headers for name in _BROWSER):
            self._refuse(
                request,
                "api_form",
                "allowed_origins",
                "a browser's form is not JSON: send Content-Type application/json",
            )
        else:
            return
        self._refuse(request, "api_origin", "allowed_origins", whence[:_MAX_LENGTH])

    def _is_ours(self, host: str) -> bool:
        """Return whether ``host_names`` contains the host. Addresses are always accepted, because only a name can be
        made to resolve to this node."""
        name = _name_of(host)
        if not name or name == "localhost" or name in self._names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True

    def _refuse(self, request: web.Request, reason: str, setting: str, what: str) -> None:
        self._refusals.add(reason)
        now = self._clock.now()
        when, count = self._logged.get(reason, (0.0, 0))
        if now >= when:
            logger.warning(
                "api_request_refused reason=%s count=%s setting=management.%s address=%s method=%s path=%s detail=%s",
                reason,
                count + 1,
                setting,
                request.remote,
                request.method,
                path_of(request)[:_MAX_LENGTH],
                what,
            )
            self._logged[reason] = (now + SAY_EVERY, 0)
        else:
            self._logged[reason] = (when, count + 1)
        raise Refusal(WRONG, f"{what} (setting management.{setting})")


def _is_same(origin: str, host: str, secure: bool) -> bool:
    """Return whether a page of ``origin`` was served under ``Host``, by this server or by a proxy in front of it that
    has the certificate."""
    found = _ORIGIN.fullmatch(origin)
    if found is None:
        return False
    scheme, authority = found[1].lower(), found[2].lower()
    if secure and scheme != "https":
        return False
    port = ":443" if scheme == "https" else ":80"
    return authority.removesuffix(port) == host.strip().lower().removesuffix(port)


def _is_form(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() in _FORMS


def _name_of(host: str) -> str:
    """Return ``Host`` without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")
