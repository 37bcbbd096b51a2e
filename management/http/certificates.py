"""Certificates: the HTTP server's TLS, whose files are read anew while it listens."""

import ssl
from typing import Any

from broker.config import TlsSettings
from broker.transport.tls import TlsError, build_context


class Certificates:
    """``context`` is what the server listens with, for good; each handshake goes on with the one in force."""

    def __init__(self, settings: TlsSettings) -> None:
        """Raises TlsError for files that cannot be used."""
        self.context = _read(settings)
        self._settings = settings
        self._in_force = self._prepared = _read(settings)
        self.context.sni_callback = self._choose

    def prepare(self) -> None:
        """Read the files again and change nothing. Raises TlsError."""
        self._prepared = _read(self._settings)

    def apply(self) -> None:
        """Use what was prepared for the handshakes to come."""
        self._in_force = self._prepared

    def _choose(self, ssl_object: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        # Called for every handshake, with a name or without one.
        in_force = self._in_force
        ssl_object.context = in_force
        choose: Any = in_force.sni_callback
        if choose is not None:
            choose(ssl_object, server_name, in_force)


def _read(settings: TlsSettings) -> ssl.SSLContext:
    try:
        return build_context(settings)
    except TlsError as error:
        raise TlsError(f"management.{error.setting}", error.text) from None
