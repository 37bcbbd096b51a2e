"""Values that functions keep between evaluations: one store for all rules of the node, and one for each client."""

from __future__ import annotations

from typing import Final

from .budget import Budget
from .function import ANY, FunctionContext, register
from .maps_arrays import KEY
from .undefined import UNDEFINED
from .values import measure

MAX_ENTRIES: Final = 10_000
MAX_BYTES: Final = 16 * 1024 * 1024
MAX_VALUE: Final = 64 * 1024


class FunctionStore:
    """Values by key, limited in number and in bytes.

    A full store refuses new keys or, with `forget`, removes the least recently used ones."""

    __slots__ = ("entries", "forget", "size")

    def __init__(self, forget: bool) -> None:
        self.entries: dict[object, tuple[object, int]] = {}
        self.forget = forget
        self.size = 0

    def put(self, key: object, key_size: int, value: object, budget: Budget) -> None:
        """Store the value. Raises ValueError if it is too large or the store is full."""
        size = key_size + measure(value, budget)
        if size > MAX_VALUE:
            raise ValueError(f"key and value take about {size} bytes, more than {MAX_VALUE}")
        known = self.entries.get(key)
        needed = self.size + size - (known[1] if known is not None else 0)
        if not self.forget and (needed > MAX_BYTES or (known is None and len(self.entries) >= MAX_ENTRIES)):
            raise ValueError(f"the store is full: {len(self.entries)} keys, about {self.size} bytes")
        self.delete(key)
        self.entries[key] = (value, size)
        self.size += size
        while len(self.entries) > MAX_ENTRIES or self.size > MAX_BYTES:
            self.delete(next(iter(self.entries)))

    def get(self, key: object, missing: object) -> object:
        """Return the value, or `missing`."""
        entry = self.entries.get(key)
        if entry is None:
            return missing
        if self.forget:
            self.entries[key] = self.entries.pop(key)
        return entry[0]

    def delete(self, key: object) -> None:
        """Remove the key, if it exists."""
        entry = self.entries.pop(key, None)
        if entry is not None:
            self.size -= entry[1]


def _node_store(context: FunctionContext) -> FunctionStore:
    store: FunctionStore = context.state.setdefault("kv_store", FunctionStore(forget=False))
    return store


def _client_store(context: FunctionContext) -> tuple[FunctionStore, str]:
    """Return the store of all clients, and the client of this event."""
    store: FunctionStore = context.state.setdefault("proc_dict", FunctionStore(forget=True))
    client_id = context.columns.get("clientid", "")
    return store, client_id if type(client_id) is str else ""


@register("kv_store_put", KEY, ANY, context=True)
def kv_put(context: FunctionContext, key: str, value: object) -> object:
    """Store a value under the key for all rules of this node, until it stops; return the value."""
    _node_store(context).put(key, len(key), value, context.budget)
    return value


@register("kv_store_get", KEY, ANY, optional=1, context=True)
def kv_get(context: FunctionContext, key: str, missing: object = UNDEFINED) -> object:
    """Return the value under the key, or the default."""
    return _node_store(context).get(key, missing)


@register("kv_store_del", KEY, context=True)
def kv_delete(context: FunctionContext, key: str) -> bool:
    """Remove the key; return true."""
    _node_store(context).delete(key)
    return True


@register("proc_dict_put", KEY, ANY, context=True)
def client_put(context: FunctionContext, key: str, value: object) -> object:
    """Store a value under the key for the client of this event; return the value."""
    store, client_id = _client_store(context)
    store.put((client_id, key), len(client_id) + len(key), value, context.budget)
    return value


@register("proc_dict_get", KEY, context=True)
def client_get(context: FunctionContext, key: str) -> object:
    """Return the value under the key for the client of this event."""
    store, client_id = _client_store(context)
    return store.get((client_id, key), UNDEFINED)


@register("proc_dict_del", KEY, context=True)
def client_delete(context: FunctionContext, key: str) -> bool:
    """Remove the key for the client of this event; return true."""
    store, client_id = _client_store(context)
    store.delete((client_id, key))
    return True
