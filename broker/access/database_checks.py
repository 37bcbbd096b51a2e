"""Checks of combinations of keys in the table of a database, and the TLS of its connections."""

import ssl
from collections.abc import Iterator

from ..loop.regular_file import MAX_CREDENTIALS, check_regular
from ..setting_rules import Fault
from .database_settings import DatabaseSettings, ServerSettings
from .query_hash import HashFormat


def tls_of(settings: ServerSettings) -> ssl.SSLContext | None:
    """Return the TLS context; None: without TLS. Raises ``ValueError`` with the problem of a file."""
    if not settings.tls:
        return None
    file = settings.cafile
    try:
        if file:
            check_regular(file, MAX_CREDENTIALS)
        context = ssl.create_default_context(cafile=file or None)
        if settings.certfile:
            file = settings.certfile
            check_regular(file, MAX_CREDENTIALS)
            if settings.keyfile:
                check_regular(settings.keyfile, MAX_CREDENTIALS)
            # Without a password, a key that has one is an error and not a question on the terminal.
            context.load_cert_chain(file, settings.keyfile or None, password="")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = str(error) if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{file}: {reason}") from None
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def common_faults(settings: DatabaseSettings, asked: dict[str, str]) -> Iterator[Fault]:
    """Yield faults in combinations of keys. ``asked``: the queries by their keys."""
    if not any(asked.values()):
        yield Fault((), f"needs {', '.join(asked)}")
    try:
        HashFormat(settings.password_hash)
    except ValueError as error:
        yield Fault(("password_hash",), str(error))
    yield from tls_faults(settings)


def tls_faults(settings: ServerSettings) -> Iterator[Fault]:
    if settings.keyfile and not settings.certfile:
        yield Fault(("keyfile",), "needs certfile")
    try:
        tls_of(settings)
    except ValueError as error:
        yield Fault(("tls",), str(error))
