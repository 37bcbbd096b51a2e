"""Compare: two answers' shapes, types and those of their values that do not change from run to run."""

import re
from typing import Any, Final

CHANGING: Final = frozenset(
    {
        "connected_at",
        "disconnected_at",
        "created_at",
        "updated_time",
        "activate_at",
        "deactivate_at",
        "heap_size",
        "reductions",
        "mailbox_len",
        "port",
        "recv_oct",
        "recv_cnt",
        "recv_pkt",
        "recv_msg",
        "send_oct",
        "send_cnt",
        "send_pkt",
        "send_msg",
        "datetime",
        "uptime",
        "version",
        "sysdescr",
        "otp_release",
        "memory_total",
        "memory_used",
        "load1",
        "load5",
        "load15",
        "process_used",
        "process_available",
        "max_fds",
        "connections",
        "password",
        "listen_on",
        "current_conns",
        "acceptors",
        "max_conns",
        "size",
        "filename",
        "date",
        "file",
        "until",
        "at",
        "descr",
        "description",
    }
)
"""Times, ids, ports, hashes, counters and figures of the machine."""

COUNTERS: Final = frozenset(("metrics", "stats"))
KEYS: Final = (
    "name",
    "clientid",
    "login",
    "username",
    "topic",
    "access",
    "protocol",
    "node",
    "path",
    "method",
    "app_id",
)
LISTS_OF_OWN: Final = frozenset(("listen_on", "descr"))
_MADE: Final = re.compile(r"^[A-Za-z0-9_-]{22,}$")


def compare(recorded: Any, answered: Any, paged: bool) -> list[str]:
    """What differs, each in a few words with its place. ``paged``: which rows there are is a matter of order."""
    if not isinstance(answered, dict):
        return ["no JSON object"]
    found = []
    if recorded.get("code") != answered.get("code"):
        found.append(f"code {recorded.get('code', 'none')} -> {answered.get('code')}")
    if "message" in recorded and not isinstance(answered.get("message"), str):
        found.append("message: missing")
    for key in ("data", "meta"):
        if key in recorded and key in answered:
            found += _differ(recorded[key], answered[key], key, key, paged)
        elif key in recorded:
            found.append(f"{key}: missing")
        elif key in answered:
            found.append(f"{key}: extra")
    return found


def _differ(old: Any, new: Any, place: str, key: str, paged: bool) -> list[str]:
    if type(old) is not type(new):
        return [f"{place}: {_type(old)} -> {_type(new)}"]
    if isinstance(old, dict):
        return _differ_objects(old, new, place, key, paged)
    if isinstance(old, list):
        return _differ_arrays(old, new, place, key, paged)
    if old != new and key.partition(".")[0] not in CHANGING and not (paged and place.startswith("data[]")):
        if not (isinstance(old, str) and _MADE.match(old) and _MADE.match(new)):
            return [f"{place}: {old!r} -> {new!r}"]
    return []


def _differ_objects(old: dict[str, Any], new: dict[str, Any], place: str, key: str, paged: bool) -> list[str]:
    found = [f"{place}.{each}: missing" for each in old if each not in new]
    found += [f"{place}.{each}: extra" for each in new if each not in old]
    if paged and old.get("connected") is not new.get("connected"):
        # Rows of two pages: one is of a client that is gone.
        found = [each for each in found if ".disconnected_at: " not in each]
    for each in old:
        if each in new:
            # What a counter counts is another matter; that it is there and a number is this one.
            inner = "size" if key in COUNTERS or place.endswith("shutdown_count") or _counts(old) else each
            found += _differ(old[each], new[each], f"{place}.{each}", inner, paged)
    return found


def _counts(old: dict[str, Any]) -> bool:
    return "messages.received" in old or "connections.count" in old


def _differ_arrays(old: list[Any], new: list[Any], place: str, key: str, paged: bool) -> list[str]:
    found: list[str] = []
    if old and new and isinstance(old[0], dict) and not LISTS_OF_OWN.isdisjoint(old[0]):
        # Which listeners and endpoints there are is each node's own matter; what one looks like is not.
        return [each for each in _differ(old[0], new[0], f"{place}[]", key, paged) if "->" not in each]
    if len(old) != len(new):
        found.append(f"{place}: length {len(old)} -> {len(new)}")
    for before, after in zip(sorted(old, key=_order), sorted(new, key=_order), strict=False):
        found += _differ(before, after, f"{place}[]", key, paged)
    return found


def _order(item: Any) -> str:
    """Rows stand side by side by what names them; a made-up client identifier comes last."""
    if not isinstance(item, dict):
        return str(item)
    return repr([_known(item.get(key)) for key in KEYS])


def _known(value: Any) -> Any:
    return "~" if isinstance(value, str) and _MADE.match(value) else value


def _type(value: Any) -> str:
    return {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}.get(
        type(value), "number"
    )
