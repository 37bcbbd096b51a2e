"""/rules: the messages and events that are selected, and the actions on the result."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taipan.ruleengine.records import EvaluationRecord, OnActionFailed, RuleRecord

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.node_listing import Page
from ..operations.refusal import missing
from ..operations.rules import RulesQuery

routes = Endpoints("Rules")

Id = Annotated[str, Meta(min_length=1, max_length=256)]
Description = Annotated[str, Meta(max_length=65_535)]
Members = dict[str, Any] | Annotated[list[Any], Meta(max_length=0)]
"""An object. An object without members may be given as ``[]``, as PHP encodes it."""


def members(given: dict[str, Any] | list[Any]) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


class NewAction(msgspec.Struct, kw_only=True):
    """``fallbacks`` run one after another if the action fails."""

    name: str
    params: Members
    fallbacks: list["NewAction"] = []


class NewRule(msgspec.Struct, kw_only=True):
    """With ``test`` nothing is created: ``rawsql`` is applied to the column values of ``ctx``, which override the
    examples of ``/rule_events``. Without ``test``, ``actions`` are required."""

    rawsql: str
    actions: list[NewAction] | UnsetType = UNSET
    id: Id | UnsetType = UNSET
    description: Description = ""
    enabled: bool = True
    on_action_failed: OnActionFailed = "continue"
    test: bool = False
    ctx: dict[str, Any] = {}


class RuleChanges(msgspec.Struct, kw_only=True):
    """Changes of a rule; fields that are not given remain unchanged."""

    rawsql: str | UnsetType = UNSET
    actions: list[NewAction] | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    on_action_failed: OnActionFailed | UnsetType = UNSET


class TraceSize(msgspec.Struct):
    """How many evaluations to keep; 0: none."""

    size: Annotated[int, Meta(ge=0, le=100)] = 20


@routes.get("/rules", "The rules, newest first", query=RulesQuery, reply=list[RuleRecord])
def list_rules(call: Call) -> Page[RuleRecord]:
    query: RulesQuery = call.query
    rules = call.operations.rules
    if not query.enable_paging:
        return rules.everything(query)
    return rules.search(query, call.operations.settings.max_row_limit)


@routes.get("/rules/{id}", "One rule", reply=OfNodes(RuleRecord))
async def show_rule(call: Call) -> RuleRecord | Extra:
    return of_nodes(*await call.operations.rules.lookup(call.path["id"]))


@routes.post("/rules", "Create a rule, or test its SQL", body=NewRule, reply=dict[str, Any] | list[dict[str, Any]])
async def create_rule(call: Call) -> Any:
    """The record of the new rule; for a test, the row that would be selected, for FOREACH the list of rows."""
    new: NewRule = call.body
    rules = call.operations.rules
    if new.test:
        return await rules.test(new.rawsql, new.ctx)
    if new.actions is UNSET:
        raise missing("actions")
    return await rules.create(
        new.rawsql,
        msgspec.to_builtins(new.actions),
        None if new.id is UNSET else new.id,
        new.description,
        new.enabled,
        new.on_action_failed,
    )


@routes.put("/rules/{id}", "Change a rule", body=RuleChanges, reply=RuleRecord)
async def update_rule(call: Call) -> RuleRecord:
    return await call.operations.rules.update(call.path["id"], msgspec.to_builtins(call.body))


@routes.put("/rules/{id}/reset_metrics", "Reset the metrics of a rule and its actions")
async def reset_metrics(call: Call) -> None:
    await call.operations.rules.reset_metrics(call.path["id"])


@routes.delete("/rules/{id}", "Delete a rule")
async def delete_rule(call: Call) -> None:
    await call.operations.rules.delete(call.path["id"])


@routes.get("/rules/{id}/trace", "The last evaluations of a rule, oldest first", reply=OfNodes(list[EvaluationRecord]))
async def show_rule_trace(call: Call) -> list[EvaluationRecord] | Extra:
    """Empty until ``PUT`` has requested evaluations."""
    return of_nodes(*await call.operations.rules.trace(call.path["id"]))


@routes.put("/rules/{id}/trace", "Set how many evaluations of a rule are kept", body=TraceSize)
async def keep_rule_trace(call: Call) -> None:
    await call.operations.rules.keep_trace(call.path["id"], call.body.size)
