"""Certificates: the TLS of an HTTP server, whose files can be read again while it is listening."""

import ssl

from taipan.broker.config import TlsSettings
from taipan.broker.transport.tls import TlsError, build_context


class Certificates:
    """``context`` is for new handshakes. A reload replaces it, and with it all TLS sessions of the previous one."""

    def __init__(self, table: str, settings: TlsSettings) -> None:
        """``table``: the configuration table that names the files. Raises TlsError for files that cannot be used."""
        self._table = table
        self._settings = settings
        self.context = self._prepared = self._read()

    def prepare(self) -> None:
        """Read the files again without changing anything. Raises TlsError."""
        self._prepared = self._read()

    def apply(self) -> None:
        """Use the prepared files for new handshakes."""
        self.context = self._prepared

    def _read(self) -> ssl.SSLContext:
        try:
            return build_context(self._settings)
        except TlsError as error:
            raise TlsError(f"{self._table}.{error.setting}", error.text) from None
