"""StoreAlarms: alarms about a store that is damaged, has lost data or cannot be written."""

import logging
from typing import Final

from .access.banned import TABLE as BANNED
from .access.control import AccessControl
from .access.stored.rules import TABLE as STORED_RULES
from .access.stored.users import TABLE as STORED_USERS
from .observability.alarms import RaisedAlarms
from .store.store import Store

logger = logging.getLogger(__name__)

_HELD: Final = "sessions, subscriptions, queued, retained and delayed messages, rules and resources"


class StoreAlarms:
    """Alarms about a store, and whether clients are accepted if rows of access control are lost."""

    def __init__(self, store: Store | None, alarms: RaisedAlarms, access: AccessControl) -> None:
        """``store``: None at durability level ``memory``."""
        self._store = store
        self._alarms = alarms
        self._access = access
        if store is not None:
            store.on_trouble = self._trouble

    def opened(self, store: Store) -> None:
        """Report what was found when the store was opened."""
        details = {"file": str(store.file), "setting": "node.data_dir"}
        if store.damage:
            self._alarms.activate("store_damaged", store.damage, details)
        loss = store.loss
        if loss.batches is not None:
            first, last = loss.batches
            message = f"the end of the store is missing: batches {first} to {last}, with what they said of {_HELD}"
            self._alarms.activate("store_batches_lost", message, details)
        if loss.access:
            details = {**details, "setting": "data.access_lost", "tables": ", ".join(sorted(loss.tables))}
            message = f"access records are lost or have changed: {loss.access}"
            self._alarms.activate("access_rows_lost", message, details)
        if store.access_lost and loss.tables & {STORED_USERS, STORED_RULES, BANNED}:
            self._access.lost = "access records are lost; taipan-ctl data accept-loss accepts clients again"

    @property
    def tables_lost(self) -> frozenset[str]:
        """Return the tables with unreliable rows, until the loss is accepted."""
        return self._store.loss.tables if self._store is not None and self._store.access_lost else frozenset()

    async def accept_loss(self) -> bool:
        """Accept the loss of rows of access control, and accept clients. Return whether that is on disk."""
        if self._store is None or not self._store.access_lost:
            return True
        what = self._store.access_lost
        if not await self._store.accept_loss():
            return False
        logger.warning("access_loss_accepted what=%s", what)
        self._access.lost = ""
        self._alarms.deactivate("access_rows_lost")
        return True

    def _trouble(self, trouble: str | None) -> None:
        if trouble is None:
            self._alarms.deactivate("store_trouble")
            return
        assert self._store is not None
        details = {"file": str(self._store.file), "setting": "node.data_dir", "error": trouble}
        message = "nothing can be written to the store; QoS 1 and 2 are not acknowledged"
        self._alarms.activate("store_trouble", f"{message}: {trouble}", details)
