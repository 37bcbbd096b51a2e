"""Resumption: who takes up a session of TLS 1.2 again shows no certificate; the one of the session is looked at again.

Tickets are off where client certificates are asked for; sessions that OpenSSL keeps in the server, by their
identifiers, cannot be switched off. They end with their context, hence with every reload: what may have changed
meanwhile is the time.
"""

import ssl
import time
from typing import Final, TypedDict, cast

EXPIRED: Final = "certificate has expired"
MISSING: Final = "no client certificate"
_MAX_DEPTH: Final = 10

DistinguishedName = tuple[tuple[tuple[str, str], ...], ...]


class Certificate(TypedDict):
    """As ``ssl`` gives them."""

    subject: DistinguishedName
    issuer: DistinguishedName
    notBefore: str
    notAfter: str


Authorities = dict[DistinguishedName, list[Certificate]]


def authorities_of(context: ssl.SSLContext) -> Authorities:
    """The certificates of ``tls.cafile`` by their subject."""
    found: Authorities = {}
    for certificate in cast(list[Certificate], context.get_ca_certs()):
        found.setdefault(certificate["subject"], []).append(certificate)
    return found


def fault(ssl_object: ssl.SSLObject, authorities: Authorities, required: bool) -> str | None:
    """Why the client that resumed its session is not let in, in OpenSSL's words; ``None`` where it is.

    An authority that only the client knows of was looked at when the session began.
    """
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
