"""Resumption: a client that resumes a TLS 1.3 session sends no certificate; the certificate of the session is checked
again.

Tickets are disabled if client certificates are requested; sessions that OpenSSL keeps in the server, by their
identifiers, cannot be disabled. They end with their context, so with every reload: only the time may have changed in
the meantime."""

import ssl
import time
from typing import Final, TypedDict, cast

EXPIRED: Final = "certificate has expired"
MISSING: Final = "no client certificate"
_MAX_DEPTH: Final = 10

DistinguishedName = tuple[tuple[tuple[str, str], ...], ...]


class Certificate(TypedDict):
    """In the form of ``ssl``."""

    subject: DistinguishedName
    issuer: DistinguishedName
    notBefore: str
    notAfter: str


Authorities = dict[DistinguishedName, list[Certificate]]


def authorities_of(context: ssl.SSLContext) -> Authorities:
    """Return the certificates of ``tls.cafile`` by their subject."""
    found: Authorities = {}
    for certificate in cast(list[Certificate], context.get_ca_certs()):
        found.setdefault(certificate["subject"], []).append(certificate)
    return found


def fault(ssl_object: ssl.SSLObject, authorities: Authorities, required: bool) -> str | None:
    """Return why a client with a resumed session is not accepted, in OpenSSL's words; ``None`` if it is.

    An authority that only the client knows was checked when the session began."""
    certificate = cast(Certificate | None, ssl_object.getpeercert())
    if not certificate:
        return MISSING if required else None
    return None if _holds(certificate, authorities, time.time(), 0) else EXPIRED


def _holds(certificate: Certificate, authorities: Authorities, now: float, depth: int) -> bool:
    begins = ssl.cert_time_to_seconds(certificate["notBefore"])
    if not begins <= now <= ssl.cert_time_to_seconds(certificate["notAfter"]) or depth == _MAX_DEPTH:
        return False
    issuer = certificate["issuer"]
    if issuer == certificate["subject"] or issuer not in authorities:
        return True
    return any(_holds(each, authorities, now, depth + 1) for each in authorities[issuer])
