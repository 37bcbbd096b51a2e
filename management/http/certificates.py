"""Certificates: the TLS of an HTTP server, whose files can be read again while it listens."""

import ssl

from taipan.broker.config import TlsSettings
from taipan.broker.transport.tls import TlsError, build_context


class Certificates:
    """``context`` is for the handshakes to come. A reload takes another, and with it no session of the one before."""

    def __init__(self, table: str, settings: TlsSettings) -> None:
        """``table``: of the configuration that they are named in. Raises TlsError for files that cannot be used."""
        self._table = table
        self._settings = settings
        self.context = self._prepared = self._read()

    def prepare(self) -> None:
        """Read the files again and change nothing. Raises TlsError."""
        self._prepared = self._read()

    def apply(self) -> None:
        """Use what was prepared for the handshakes to come."""
        self.context = self._prepared

    def _read(self) -> ssl.SSLContext:
        try:
            return build_context(self._settings)
        except TlsError as error:
            raise TlsError(f"{self._table}.{error.setting}", error.text) from None
