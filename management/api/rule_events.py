"""/rule_events and /rule_functions: the events that rules can use in addition to topics, and the functions that they
can call."""

from taipan.ruleengine.records import RuleEventRecord, RuleFunction

from ..http.routes import Call, Endpoints

routes = Endpoints("Rule events")


@routes.get("/rule_events", "The events that rules can select from", reply=list[RuleEventRecord])
def list_rule_events(call: Call) -> list[RuleEventRecord]:
    return call.operations.rules.events()


@routes.get("/rule_functions", "The functions of rule SQL", reply=list[RuleFunction])
def list_rule_functions(call: Call) -> list[RuleFunction]:
    return call.operations.rules.functions()
