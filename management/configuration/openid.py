"""The settings ``[dashboard.openid]``, the requirements for their values, and the files that they name."""

import ssl
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final, Literal

import msgspec

from taipan.broker.loop.regular_file import MAX_CREDENTIALS, check_regular, read_regular
from taipan.broker.setting_rules import Fault, ValueRule, check_url, filled, parsed
from taipan.broker.value_types import PositiveSeconds, Seconds

_MAX_SECRET: Final = 4096


class OpenIdSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[dashboard.openid]``: login to the dashboard by OpenID Connect."""

    issuer: str
    client_id: str
    client_secret: str = ""
    client_secret_file: str = ""
    dashboard_url: str  # as browsers open it
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    username_claim: str = "preferred_username"
    roles_claim: str = "groups"  # a dot leads into an object
    administrators: tuple[str, ...] = ()  # values of roles_claim
    operators: tuple[str, ...] = ()
    viewers: tuple[str, ...] = ()
    default_role: Literal["", "viewer"] = ""  # of users without one; empty: these are refused
    label: str = ""  # of the button; empty: words of the page
    logout_at_provider: bool = False
    cafile: str = ""
    timeout: PositiveSeconds = 5.0  # for each answer of the provider
    leeway: Seconds = 30.0  # by which the clocks may differ


def check_provider_url(url: str, https: bool = False) -> None:
    """Raise ``ValueError`` unless the URL has https, or http for a provider on this machine. ``https``: the provider
    itself has https, so its answers must not lead to http, not even on this machine."""
    from yarl import URL  # imported here, as in ``check_url``

    if not url:
        raise ValueError("expected https://host...")
    check_url(url)
    address = URL(url)
    if address.user or address.password or address.fragment:
        raise ValueError("expected a URL without credentials and fragment")
    if https and address.scheme != "https":
        raise ValueError("expected https://host..., as for the issuer")
    if address.scheme != "https" and not _is_here(address.host or ""):
        raise ValueError("expected https://host...; http is only accepted for a provider on this machine")


def _check_issuer(url: str) -> None:
    check_provider_url(url)
    if "?" in url:
        raise ValueError("expected a URL without a query")


def _check_dashboard_url(url: str) -> None:
    from yarl import URL

    if not url:
        raise ValueError("expected the URL of the dashboard in browsers, such as https://mqtt.example.org:18083")
    check_url(url)
    address = URL(url)
    if (
        address.user
        or address.password
        or "?" in url
        or "#" in url
        or address.path.rstrip("/") not in ("", "/dashboard")
    ):
        raise ValueError("expected https://host:port, with /dashboard after it if the management port serves the page")


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _scopes(value: tuple[str, ...]) -> Iterator[Fault]:
    if "openid" not in value:
        yield Fault((), 'expected "openid" among them')
    for index, each in enumerate(value):
        if not each or not each.isascii() or not each.isprintable() or " " in each:
            yield Fault((index,), "expected a scope, without spaces")


def _groups(value: tuple[str, ...]) -> Iterator[Fault]:
    for index, each in enumerate(value):
        if not each:
            yield Fault((index,), "expected the name of a group")


VALUE_RULES: Final[dict[str, ValueRule]] = {
    "issuer": parsed(_check_issuer),
    "client_id": filled("the ID of the client at the provider"),
    "dashboard_url": parsed(_check_dashboard_url),
    "scopes": _scopes,
    "username_claim": filled("the name of a claim"),
    "roles_claim": filled("the name of a claim"),
    "administrators": _groups,
    "operators": _groups,
    "viewers": _groups,
}


def validate(settings: OpenIdSettings) -> Iterator[Fault]:
    """Check what concerns several keys, and the files."""
    if settings.client_secret and settings.client_secret_file:
        yield Fault(("client_secret_file",), "client_secret is already the secret")
    if not (settings.administrators or settings.operators or settings.viewers or settings.default_role):
        yield Fault((), "needs administrators, operators, viewers or default_role: otherwise no user has a role")
    roles = ("administrators", "operators", "viewers")
    for index, role in enumerate(roles):
        for other in roles[:index]:
            for each in sorted({*getattr(settings, role)} & {*getattr(settings, other)}):
                yield Fault((role,), f"{each!r} is already one of {other}")
    for key, read in (("client_secret_file", read_secret), ("cafile", tls_context)):
        try:
            read(settings)
        except ValueError as error:
            yield Fault((key,), str(error))


def read_secret(settings: OpenIdSettings) -> str:
    """Return the client's secret, empty for a client without one. Raises ``ValueError``."""
    file = settings.client_secret_file
    if not file:
        return settings.client_secret
    try:
        secret = read_regular(file, MAX_CREDENTIALS)[: _MAX_SECRET + 1].decode().strip()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror or error}") from None
    except ValueError:  # also a NUL in the name
        raise ValueError(f"{file}: not UTF-8") from None
    if not 0 < len(secret) <= _MAX_SECRET:
        raise ValueError(f"{file}: expected 1 to {_MAX_SECRET} characters")
    return secret


def tls_context(settings: OpenIdSettings) -> ssl.SSLContext | bool:
    """Return how to verify the provider's certificate. Raises ``ValueError``."""
    file = settings.cafile
    if not file:
        return True  # the authorities of the system
    try:
        check_regular(file, MAX_CREDENTIALS)
        return ssl.create_default_context(cafile=file)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = str(error) if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{file}: {reason}") from None
