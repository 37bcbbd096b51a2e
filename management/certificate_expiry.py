"""An alarm for each certificate of a listener or of the management server that expires soon."""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from .configuration.config import Settings
from .configuration.served_certificates import ServedCertificate, date_text, served_certificates

if TYPE_CHECKING:
    from taipan.broker.server import Server

logger = logging.getLogger(__name__)

WARN_BEFORE: Final = 30 * 86_400.0
"""Seconds before the expiry of a certificate at which its alarm starts on a node without a management server."""
_INTERVAL: Final = 3600.0


class ExpiryAlarms:
    """One alarm for each certificate that expires soon; it ends when another certificate is loaded (SIGHUP)."""

    def __init__(
        self, server: "Server", settings: Settings, warn_before: Callable[[], float] = lambda: WARN_BEFORE
    ) -> None:
        """``warn_before``: seconds before the expiry at which the alarm starts (``operations.alarm_thresholds``)."""
        self._server = server
        self._warn_before = warn_before
        self._certificates: list[ServedCertificate] = []
        self._names: set[str] = set()
        self.reload(settings)
        server.ticker.every(_INTERVAL, lambda now: self.look())

    def reload(self, settings: Settings) -> None:
        """Note that the certificate files were read again."""
        self._certificates = served_certificates(settings)
        self.look()

    def look(self) -> None:
        """Raise the alarms that are due, and end the others."""
        now = self._server.clock.wall()
        due = {each.alarm: each for each in self._certificates if each.ends - now <= self._warn_before()}
        for name in self._names - due.keys():
            self._server.alarms.deactivate(name)
        for name, each in due.items():
            details: Mapping[str, object] = {
                "setting": each.setting,
                "file": each.file,
                "not_after": date_text(each.ends),
            }
            self._server.alarms.activate(
                name, f"the certificate in {each.file} ends on {date_text(each.ends)}", details
            )
        self._names = set(due)
