"""/rule_events: what rules can ask for beside topics."""

from typing import Any

import msgspec

from ..http.routes import Call, Routes
from .actions import Words

routes = Routes("Rule events")


class RuleEventRecord(msgspec.Struct):
    """``event`` is what FROM names; ``test_columns`` are examples for trying SQL."""

    event: str
    title: Words
    description: Words
    columns: list[str]
    test_columns: dict[str, Any]
    sql_example: str


@routes.get("/rule_events", "The events that rules can ask for", reply=list[RuleEventRecord])
def list_rule_events(call: Call) -> Any:
    return call.operations.rules.events()
