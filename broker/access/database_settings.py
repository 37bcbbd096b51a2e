"""DatabaseSettings: the common keys in the table of each database; ServerSettings: the same without database users."""

from typing import Annotated, Final

from msgspec import Meta

from .declaration import RemoteSettings


class ServerSettings(RemoteSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Connections to a server, and their TLS."""

    pool_size: Annotated[int, Meta(ge=1, le=10_000)] = 8
    tls: bool = False
    tls_verify: bool = True
    cafile: str = ""
    certfile: str = ""
    keyfile: str = ""


class DatabaseSettings(ServerSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys that EMQX 4 has, too, have its defaults."""

    server: str
    username: str = ""
    password: str = ""
    password_hash: str = "sha256"


SHOWN: Final = frozenset(["cafile", "certfile", "keyfile"])
"""Not ``password_hash``: in other tables it is the hash of a password."""


def address_of(text: str, port: int) -> tuple[str, int]:
    """Return host and port from ``host:port``, ``[::1]:port``, a host, or a port alone. Raises ``ValueError``."""
    text = text.strip()
    host, colon, written = text.rpartition(":")
    if not colon:
        host, written = ("127.0.0.1", text) if text.isdigit() else (text, str(port))
    elif text.endswith("]"):
        host, written = text, str(port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or any(letter.isspace() for letter in host):
        raise ValueError("expected host:port")
    if not (written.isascii() and written.isdigit() and 1 <= int(written[:6]) <= 65_535):
        raise ValueError("expected a port from 1 to 65535")
    return host, int(written)
