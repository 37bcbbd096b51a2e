"""What ``[access.http]`` may say, and the TLS of its connections; without the client that asks."""

import re
import ssl
from typing import Final

from ..config import HttpAccessSettings
from ..loop.regular_file import MAX_CREDENTIALS, check_regular

PLACEHOLDERS: Final = "ucaPrpCdmAt"
"""Letters that stand behind ``%`` in a parameter; ``A`` and ``t`` only where a permission is asked for."""


def tls_context(settings: HttpAccessSettings) -> ssl.SSLContext | bool:
    """For the connections of an ``https`` URL; ``ValueError`` names what is wrong with ``cafile``."""
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


def check_url(url: str) -> None:
    """``ValueError`` unless it is empty or an address that can be asked."""
    if not url:
        return
    from yarl import URL  # here: a node without such a service needs none of it

    try:
        parsed = URL(url)
    except ValueError as error:
        raise ValueError(f"no URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("expected http://host... or https://host...")


def check_placeholders(known: str, template: str) -> None:
    """``ValueError`` for a placeholder that this question does not have."""
    for letter in re.findall("%([A-Za-z])", template):
        if letter not in known:
            raise ValueError(f"%{letter} is none of {', '.join('%' + each for each in known)}")
