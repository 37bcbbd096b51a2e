"""/rule_events: what rules can ask for beside topics."""

from taipan.ruleengine.records import RuleEventRecord

from ..http.routes import Call, Routes

routes = Routes("Rule events")


@routes.get("/rule_events", "The events that rules can ask for", reply=list[RuleEventRecord])
def list_rule_events(call: Call) -> list[RuleEventRecord]:
    return call.operations.rules.events()
