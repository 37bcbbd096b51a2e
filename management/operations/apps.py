"""Applications: clients of the management server. Each has an AppID and an AppSecret; only a hash of the secret is
stored."""

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from taipan.broker.access.random_secret import generate
from taipan.broker.loop.clock import Clock
from taipan.broker.observability.masking import MASK
from taipan.broker.persistence.tables import Tables

from ..configuration.known_secrets import is_known
from ..configuration.settings import AppSettings
from .durable_answer import check_store_writable, rows_of_a_size, wait_until_stored
from .node_calls import NodeCalls
from .refusal import EXISTS, WRONG, WRONG_CREDENTIALS, Refusal, not_found, wrong

logger = logging.getLogger(__name__)

TABLE: Final = "apps"
FIRST_APP: Final = "admin"
_APP_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,255}")
NOTE_USES_EVERY: Final = 60.0
"""Seconds between two calls of ``note_uses``."""
_NO_HASH: Final = hashlib.sha256(secrets.token_bytes(32)).digest()


class App(msgspec.Struct, array_like=True, frozen=True):
    """``secret_hash``: SHA-256 of the secret. ``expired``: Unix seconds when the application expires, if it does."""

    app_id: str
    secret_hash: bytes
    name: str = ""
    desc: str = ""
    status: bool = True
    expired: int | None = None
    scopes: tuple[str, ...] = ("all",)


class AppUse(msgspec.Struct, array_like=True, frozen=True):
    """The last use of an application on this node. ``at``: Unix seconds."""

    at: float
    address: str


class AppRecord(msgspec.Struct):
    """``expired``: Unix seconds, or ``undefined``. ``secret`` is masked, and present only in the record of a single
    application. ``last_used_at``: Unix milliseconds, to a minute; null: not used on a node that answers."""

    app_id: str
    name: str
    desc: str
    status: bool
    expired: int | str
    scopes: list[str]
    secret: str | UnsetType = UNSET
    last_used_at: int | None = None
    last_used_from: str = ""


class Apps:
    """Stored and configured applications; the configured ones take precedence."""

    def __init__(
        self,
        tables: Tables,
        clock: Clock,
        configured: list[AppSettings],
        calls: NodeCalls,
        lost: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """``lost``: names of tables with unreliable rows."""
        self._clock = clock
        self._calls = calls
        self._lost = lost
        self._tables = tables
        self._table = tables.open(TABLE, App, access=True, shared=True)
        self._uses = tables.open("apps_used", AppUse)
        # The applications that made requests since ``note_uses``, with the latest address.
        self._used_from: dict[str, str] = {}
        self._table.on_taken.append(self._taken)
        self._configured: dict[str, App] = {}
        self.configure(configured)

    def configure(self, settings: list[AppSettings]) -> None:
        """Apply ``[[management.apps]]``."""
        self._configured = {
            each.id: App(each.id, hash_of(each.secret), each.id, "configuration", scopes=each.scopes)
            for each in settings
        }
        for index, each in enumerate(settings):
            if is_known(each.secret):
                logger.warning("default_secret app_id=%s setting=management.apps.%s.secret", each.id, index)

    def create_first(self) -> tuple[str, str] | None:
        """Create an application if none exists. Return its ID and its secret, which is shown only this once."""
        if self._configured or len(self._table) or TABLE in self._lost():
            return None
        rows = self._tables.shared_rows
        if rows is not None and rows.begin():
            return None  # another node of the cluster may have some
        secret = generate()
        self._table.put(FIRST_APP, App(FIRST_APP, hash_of(secret), "Default", "Application user"))
        return FIRST_APP, secret

    def listing(self) -> list[AppRecord]:
        """Return the application records without secrets; those of the configuration come first."""
        self.note_uses()
        stored = [app for app_id, app in self._table.items() if app_id not in self._configured]
        return [self._record(app) for app in (*self._configured.values(), *stored)]

    def lookup(self, app_id: str) -> AppRecord | None:
        """Return one application's record with a masked secret."""
        self.note_uses()
        app = self._configured.get(app_id) or self._table.get(app_id)
        return self._record(app, MASK) if app is not None else None

    def _record(self, app: App, secret: str | UnsetType = UNSET) -> AppRecord:
        record = app_record(app, secret)
        use = self._uses.get(app.app_id)
        return record if use is None else with_latest(record, [use])

    async def add(
        self,
        app_id: str,
        name: str,
        secret: str | None = None,
        desc: str = "",
        status: bool = True,
        expired: int | None = None,
        scopes: Sequence[str] = ("all",),
    ) -> str:
        """Add an application; return its secret, generated unless given. The secret cannot be read again."""
        if not _APP_ID.fullmatch(app_id):
            raise wrong("app_id", "expected 1 to 256 letters, digits, '_' or '-', a letter or digit first")
        if app_id in self._configured or app_id in self._table:
            raise Refusal(EXISTS, f"application {app_id} already exists")
        if secret is not None and is_known(secret):
            raise wrong("secret", "this is EMQX's published default: omit it, and the node generates a secret")
        check_store_writable(self._tables)
        secret = secret or generate()
        with rows_of_a_size():
            self._table.put(app_id, App(app_id, hash_of(secret), name, desc, status, expired, tuple(scopes)))
        await wait_until_stored(self._tables)
        return secret

    async def update(self, app_id: str, **changes: object) -> None:
        """Update an application. ``changes``: any of ``name``, ``desc``, ``status``, ``expired``, ``scopes``; other
        fields remain."""
        app = self._changeable(app_id)
        if app is None:
            raise not_found("application", app_id)
        check_store_writable(self._tables)
        with rows_of_a_size():
            self._table.put(app_id, msgspec.structs.replace(app, **changes))
        await wait_until_stored(self._tables)

    async def delete(self, app_id: str) -> bool:
        """Delete an application; return whether it existed."""
        if self._changeable(app_id) is None:
            return False
        check_store_writable(self._tables)
        self._table.remove(app_id)
        self._forget_use(app_id)
        await wait_until_stored(self._tables)
        return True

    def _taken(self, app_id: str, old: App | None, new: App | None) -> None:
        """Handle that another node has changed an application."""
        if new is None:
            self._forget_use(app_id)

    def _forget_use(self, app_id: str) -> None:
        self._uses.remove(app_id)
        self._used_from.pop(app_id, None)

    def note_uses(self) -> None:
        """Store the last use of each application since the previous call: a request itself does not read the clock."""
        if self._used_from and not self._tables.in_trouble:
            now = self._clock.wall()
            for app_id, address in self._used_from.items():
                self._uses.put(app_id, AppUse(now, address))
            self._used_from.clear()

    def uses_here(self) -> dict[str, AppUse]:
        """Return the last use of each application on this node."""
        self.note_uses()
        return dict(self._uses.items())

    def stored(self) -> list[App]:
        """Return the stored applications, oldest first: a copy that includes the hashes of their secrets."""
        return list(self._table.values())

    def is_replaced_by(self, app: App) -> bool:
        """Return whether ``put`` would change an existing application. It never changes those of the configuration."""
        there = self._table.get(app.app_id)
        return there is not None and there != app and app.app_id not in self._configured

    def is_configured(self, app_id: str) -> bool:
        """Return whether the application is in the configuration, which overrides a stored one."""
        return app_id in self._configured

    def stored_app(self, app_id: str) -> App | None:
        """Return the stored application, which an import may replace."""
        return self._table.get(app_id)

    def as_imported(self, app: App) -> App:
        """Return an application from a file. If it has no scopes, as written by EMQX or an earlier version, it keeps
        the scopes of the application that it replaces; a new one gets all scopes."""
        if app.scopes:
            return app
        there = self._table.get(app.app_id)
        return msgspec.structs.replace(app, scopes=there.scopes if there is not None and there.scopes else ("all",))

    def put(self, app: App) -> None:
        """Add or replace an application for an import. An application with the same AppID in the configuration takes
        precedence."""
        self._table.put(app.app_id, app)

    def _changeable(self, app_id: str) -> App | None:
        if app_id in self._configured:
            raise Refusal(
                WRONG, f"application {app_id} is in the configuration file, [[management.apps]]: change it there"
            )
        return self._table.get(app_id)

    def check(self, app_id: str, secret: str, address: str = "") -> App | None:
        """Return the active application with this secret. Takes the same time for an application that does not exist.
        ``address``: the caller's address, noted as the application's last use; empty: nothing is noted.

        Raises Refusal for a stored application while stored applications may be lost, because a deleted one could have
        returned."""
        app = self._configured.get(app_id) or self._table.get(app_id)
        right = hmac.compare_digest(hash_of(secret), app.secret_hash if app is not None else _NO_HASH)
        if app is None or not right or not app.status:
            return None
        if app_id not in self._configured and TABLE in self._lost():
            raise Refusal(
                WRONG_CREDENTIALS,
                "stored applications may be lost (data.access_lost): those of [[management.apps]] are accepted,"
                " and taipan-ctl data accept-loss accepts the loss",
            )
        if app.expired is not None and app.expired < self._clock.wall():
            return None
        if address:
            self._used_from[app_id] = address
        return app


def app_record(app: App, secret: str | UnsetType = UNSET) -> AppRecord:
    """Return EMQX's record of an application; ``expired`` is ``"undefined"`` if it never expires."""
    expired = "undefined" if app.expired is None else app.expired
    return AppRecord(app.app_id, app.name, app.desc, app.status, expired, list(app.scopes), secret)


def with_latest(record: AppRecord, uses: Iterable[AppUse]) -> AppRecord:
    """Return the record with the latest use: its own, or one of these."""
    for use in uses:
        at = round(use.at * 1000)
        if record.last_used_at is None or at > record.last_used_at:
            record = msgspec.structs.replace(record, last_used_at=at, last_used_from=use.address)
    return record


def hash_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
