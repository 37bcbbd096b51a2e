"""/actions: what rules can do with the rows that they select."""

from taipan.ruleengine.records import ActionTypeRecord

from ..http.routes import Call, Endpoints

routes = Endpoints("Rule actions")


@routes.get("/actions", "The actions that rules can have", reply=list[ActionTypeRecord])
def list_actions(call: Call) -> list[ActionTypeRecord]:
    return call.operations.rules.actions()


@routes.get("/actions/{name}", "One action", reply=ActionTypeRecord)
def show_action(call: Call) -> ActionTypeRecord:
    return call.operations.rules.action(call.path["name"])
