"""Applications: who may use the management server. Each has an AppID and an AppSecret, of which only a hash is kept."""

import hashlib
import hmac
import secrets
from typing import Final

import msgspec

from broker.core.clock import Clock
from broker.core.tables import Tables

from ..settings import AppSettings

FIRST_APP: Final = "admin"
_NOBODY: Final = hashlib.sha256(secrets.token_bytes(32)).digest()


class App(msgspec.Struct, array_like=True, frozen=True):
    """``secret_hash``: SHA-256 of the secret. ``expired``: unix seconds after which it may do nothing, if ever."""

    app_id: str
    secret_hash: bytes
    name: str = ""
    desc: str = ""
    status: bool = True
    expired: int | None = None


class Apps:
    """The stored ones and those of the configuration, which win."""

    def __init__(self, tables: Tables, clock: Clock, configured: list[AppSettings]) -> None:
        self._clock = clock
        self._table = tables.open("apps", App)
        self._configured: dict[str, App] = {}
        self.configure(configured)

    def configure(self, settings: list[AppSettings]) -> None:
        """Take ``[[management.apps]]``."""
        self._configured = {each.id: App(each.id, hash_of(each.secret), each.id, "configuration") for each in settings}

    def create_first(self) -> tuple[str, str] | None:
        """Where there is no application at all, make one; its id and its secret, told this once."""
        if self._configured or len(self._table):
            return None
        secret = secrets.token_hex(32)
        self._table.put(FIRST_APP, App(FIRST_APP, hash_of(secret), "Default", "Application user"))
        return FIRST_APP, secret

    def verify(self, app_id: str, secret: str) -> bool:
        """Whether this is a live application's secret. Takes as long for an application that is not there."""
        app = self._configured.get(app_id) or self._table.get(app_id)
        right = hmac.compare_digest(hash_of(secret), app.secret_hash if app is not None else _NOBODY)
        if app is None or not right or not app.status:
            return False
        return app.expired is None or app.expired >= self._clock.now()


def hash_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
