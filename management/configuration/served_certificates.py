"""The certificates that a node serves, and their validity."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from taipan.broker.config import TlsSettings
from taipan.broker.loop.regular_file import MAX_CREDENTIALS, read_regular

from .config import Settings

if TYPE_CHECKING:
    from cryptography import x509


class ServedCertificate(NamedTuple):
    """``setting``: the setting that names the file. ``begins``, ``ends``: Unix seconds, of the certificate in the chain
    with the shortest validity. ``names``: the hosts and addresses that clients compare (subjectAltName)."""

    setting: str
    file: str
    begins: float
    ends: float
    names: tuple[str, ...]

    @property
    def alarm(self) -> str:
        return f"certificate/{self.setting}/expires"

    def fault(self, now: float) -> str | None:
        """Return why clients refuse the certificate now."""
        if now >= self.ends:
            return f"{self.setting}: the certificate in {self.file!r} expired on {date_text(self.ends)}"
        if now < self.begins:
            return f"{self.setting}: the certificate in {self.file!r} is not valid before {date_text(self.begins)}"
        return None


def served_certificates(settings: Settings) -> list[ServedCertificate]:
    """Return the certificates of all listeners and their server names, of the management server and of the dashboard.
    Files that cannot be read are left out, because opening the listener reports them."""
    places: list[tuple[str, TlsSettings | None]]
    places = [(f"listeners.{index}", each.tls) for index, each in enumerate(settings.broker.listeners)]
    for name, table in (("management", settings.management), ("dashboard", settings.dashboard)):
        if table.enabled:
            places.append((name, table.tls))
    found = []
    for place, tls in places:
        for setting, file in _files(place, tls):
            try:
                chain = _read(read_regular(file, MAX_CREDENTIALS))
            except (OSError, ValueError):
                continue
            begins = max(each.not_valid_before_utc.timestamp() for each in chain)
            ends = min(each.not_valid_after_utc.timestamp() for each in chain)
            found.append(ServedCertificate(setting, file, begins, ends, _names(chain[0])))
    return found


def _read(text: bytes) -> "list[x509.Certificate]":
    from cryptography import x509  # imported here: a node without certificates does not need it

    return x509.load_pem_x509_certificates(text)


def _names(certificate: "x509.Certificate") -> tuple[str, ...]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    hosts = found.get_values_for_type(x509.DNSName)
    return (*hosts, *map(str, found.get_values_for_type(x509.IPAddress)))


def _files(place: str, tls: TlsSettings | None) -> Iterator[tuple[str, str]]:
    if tls is None:
        return
    yield f"{place}.tls.certfile", tls.certfile
    for name, files in tls.server_names.items():
        yield f"{place}.tls.server_names.{name}.certfile", files.get("certfile", "")


def date_text(when: float) -> str:
    """Return the date in UTC, with the time zone."""
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
