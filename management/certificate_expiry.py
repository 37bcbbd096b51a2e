"""Until when the certificates of listeners and of the management server are valid: ``taipan check`` and an alarm."""

import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography import x509

from taipan.broker.config import TlsSettings

from .config import Settings

if TYPE_CHECKING:
    from taipan.broker.server import Server

logger = logging.getLogger(__name__)

WARN_BEFORE: Final = 30 * 86_400.0
"""Seconds before the end of a certificate from which on there is an alarm."""
_INTERVAL: Final = 3600.0


class ServedCertificate(NamedTuple):
    """``setting``: where its file is named. ``begins``, ``ends``: unix seconds, of the chain's narrowest."""

    setting: str
    file: str
    begins: float
    ends: float

    @property
    def alarm(self) -> str:
        return f"certificate/{self.setting}/expires"

    def fault(self, now: float) -> str | None:
        """Why clients refuse it now."""
        if now >= self.ends:
            return f"{self.setting}: the certificate in {self.file!r} expired on {_date(self.ends)}"
        if now < self.begins:
            return f"{self.setting}: the certificate in {self.file!r} is not valid before {_date(self.begins)}"
        return None


def served_certificates(settings: Settings) -> list[ServedCertificate]:
    """Of every listener, its server names, of management and of the dashboard. Files that cannot be read are left out:
    who opens the listener says so."""
    places = [(f"listeners.{index}", each.tls) for index, each in enumerate(settings.broker.listeners)]
    for name, table in (("management", settings.management), ("dashboard", settings.dashboard)):
        if table.enabled:
            places.append((name, table.tls))
    found = []
    for place, tls in places:
        for setting, file in _files(place, tls):
            try:
                with open(file, "rb") as opened:
                    chain = x509.load_pem_x509_certificates(opened.read())
            except (OSError, ValueError):
                continue
            begins = max(each.not_valid_before_utc.timestamp() for each in chain)
            ends = min(each.not_valid_after_utc.timestamp() for each in chain)
            found.append(ServedCertificate(setting, file, begins, ends))
    return found


def _files(place: str, tls: TlsSettings | None) -> Iterator[tuple[str, str]]:
    if tls is None:
        return
    yield f"{place}.tls.certfile", tls.certfile
    for name, files in tls.server_names.items():
        yield f"{place}.tls.server_names.{name}.certfile", files.get("certfile", "")


class ExpiryAlarms:
    """One alarm for each certificate that ends within 30 days; it ends when another one is loaded (SIGHUP)."""

    def __init__(self, server: "Server", settings: Settings) -> None:
        self._server = server
        self._certificates: list[ServedCertificate] = []
        self._names: set[str] = set()
        self.reload(settings)
        server.ticker.every(_INTERVAL, lambda now: self.look())

    def reload(self, settings: Settings) -> None:
        """The files were read again."""
        self._certificates = served_certificates(settings)
        self.look()

    def look(self) -> None:
        """Raise the alarms that are due, end those that are not."""
        now = self._server.clock.wall()
        due = {each.alarm: each for each in self._certificates if each.ends - now <= WARN_BEFORE}
        for name in self._names - due.keys():
            self._server.alarms.deactivate(name)
        for name, each in due.items():
            details: Mapping[str, object] = {"setting": each.setting, "file": each.file, "not_after": _date(each.ends)}
            self._server.alarms.activate(name, f"the certificate in {each.file} ends on {_date(each.ends)}", details)
        self._names = set(due)


def _date(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
