"""The check of ``[access.http]``, and the TLS of its connections. This module does not import the HTTP client."""

import ssl
from collections.abc import Iterator

from ...loop.regular_file import MAX_CREDENTIALS, check_regular
from ...setting_rules import Fault
from .declaration import HttpAccessSettings


def tls_context(settings: HttpAccessSettings) -> ssl.SSLContext | bool:
    """Return the TLS context for the connections of an ``https`` URL. Raises ``ValueError`` with the problem of
    ``cafile``."""
    urls = (settings.auth_url, settings.superuser_url, settings.acl_url)
    if not settings.cafile and (settings.tls_verify or not any(url.startswith("https:") for url in urls)):
        return True  # aiohttp's own, made once
    try:
        if settings.cafile:
            check_regular(settings.cafile, MAX_CREDENTIALS)
        context = ssl.create_default_context(cafile=settings.cafile or None)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = str(error) if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{settings.cafile}: {reason}") from None
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def faults(settings: HttpAccessSettings) -> Iterator[Fault]:
    """Yield the faults in combinations of keys, and those of the file."""
    if not (settings.auth_url or settings.superuser_url or settings.acl_url):
        yield Fault((), "needs auth_url, superuser_url or acl_url")
    try:
        tls_context(settings)
    except ValueError as error:
        yield Fault(("cafile",), str(error))
