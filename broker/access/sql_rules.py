"""The rows of EMQX 4's table of rules in SQL."""

from collections.abc import Sequence

from .acl import AclRule
from .database import as_text, new_rule


def rules_of(rows: Sequence[Sequence[object]]) -> list[AclRule]:
    """Return the access rules of rows with the columns allow, ipaddr, username, clientid, access and topic. The order
    is reversed, because in EMQX 4 the last matching row decides. Raises ``ValueError``."""
    return [_rule(row) for row in reversed(rows)]


def _rule(row: Sequence[object]) -> AclRule:
    if len(row) != 6:
        raise ValueError(f"{len(row)} columns, expected allow, ipaddr, username, clientid, access, topic")
    allow, address, username, client_id, access, topic = (as_text(value).strip() for value in row)
    if allow not in ("0", "1"):
        raise ValueError(f"allow is {allow!r}, expected 0 or 1")
    if username == "$all":
        return new_rule(allow == "1", access, topic)
    given = {"address": address, "username": username, "client_id": client_id}
    conditions = {name: value for name, value in given.items() if value}
    if not conditions:
        raise ValueError("ipaddr, username and clientid are empty")
    return new_rule(allow == "1", access, topic, **conditions)
