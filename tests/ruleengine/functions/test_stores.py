"""What functions keep between evaluations, and its bounds."""

from __future__ import annotations

from typing import Any

import pytest

from taipan.ruleengine.functions import stores
from taipan.ruleengine.functions.budget import Budget
from taipan.ruleengine.functions.registry import FunctionError
from taipan.ruleengine.functions.undefined import UNDEFINED
from tests.ruleengine.functions.calls import call, context


def test_all_rules_share_the_store_of_the_node() -> None:
    state: dict[str, Any] = {}
    assert call("kv_store_put", "k", {"a": 1}, within=context(state=state)) == {"a": 1}
    assert call("kv_store_get", "k", within=context({"clientid": "other"}, state)) == {"a": 1}
    assert call("kv_store_get", "x", within=context(state=state)) is UNDEFINED
    assert call("kv_store_del", "k", within=context(state=state)) is True
    assert call("kv_store_get", "k", 0, within=context(state=state)) == 0


def test_a_client_sees_only_what_was_kept_for_it() -> None:
    state: dict[str, Any] = {}
    one, other = {"clientid": "one"}, {"clientid": "other"}
    assert call("proc_dict_put", "k", 1, within=context(one, state)) == 1
    assert call("proc_dict_get", "k", within=context(other, state)) is UNDEFINED
    assert call("proc_dict_get", "k", within=context(one, state)) == 1
    assert call("kv_store_get", "k", within=context(one, state)) is UNDEFINED
    assert call("proc_dict_del", "k", within=context(one, state)) is True
    assert call("proc_dict_get", "k", within=context(one, state)) is UNDEFINED


def test_a_full_store_refuses_new_keys_and_keeps_the_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_ENTRIES", 2)
    state: dict[str, Any] = {}
    for key in "ab":
        call("kv_store_put", key, 1, within=context(state=state))
    with pytest.raises(FunctionError, match="kv_store_put: the store is full: 2 keys"):
        call("kv_store_put", "c", 1, within=context(state=state))
    assert call("kv_store_put", "a", 2, within=context(state=state)) == 2
    call("kv_store_del", "b", within=context(state=state))
    assert call("kv_store_put", "c", 3, within=context(state=state)) == 3


def test_the_clients_store_forgets_what_was_not_used_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_ENTRIES", 2)
    state: dict[str, Any] = {}
    for key in ("a", "b"):
        call("proc_dict_put", key, key, within=context(state=state))
    call("proc_dict_get", "a", within=context(state=state))
    call("proc_dict_put", "c", "c", within=context(state=state))
    assert [call("proc_dict_get", key, within=context(state=state)) for key in "abc"] == ["a", UNDEFINED, "c"]


def test_bytes_are_counted_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_BYTES", 1000)
    store = stores.FunctionStore(forget=False)
    store.put("a", 1, "x" * 500, Budget())
    with pytest.raises(ValueError, match="the store is full"):
        store.put("b", 1, "x" * 500, Budget())
    store.put("a", 1, "y" * 900, Budget())
    assert store.get("a", None) == "y" * 900
    store.delete("a")
    store.delete("a")
    assert store.size == 0 and not store.entries


def test_a_large_value_is_refused() -> None:
    with pytest.raises(FunctionError, match=f"more than {stores.MAX_VALUE}"):
        call("kv_store_put", "k", "x" * stores.MAX_VALUE)
    with pytest.raises(FunctionError, match=f"more than {stores.MAX_VALUE}"):
        call("kv_store_put", "k" * stores.MAX_VALUE, 1)
