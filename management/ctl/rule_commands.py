"""The commands rules, rule-actions, resources, resource-types and schemas: the rule engine."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from taipan.broker.observability.log_text import one_line
from taipan.ruleengine.records import (
    PARSER_TYPES,
    ActionTypeRecord,
    ListedResource,
    ResourceRecord,
    ResourceTypeRecord,
    RuleRecord,
    SchemaRecord,
)

from ..http.reading import parse
from ..operations.refusal import UNKNOWN, Refusal, wrong
from ..operations.rules import RulesQuery
from .command import NOT_FOUND, OK, CommandCall, CommandResult, Commands, telling

commands = Commands()

_MAX_SIZE: Final = 100
_ALL: Final = 10**15


@commands.add("rules list", "List the rules")
def list_rules(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.rules.everything(RulesQuery()), _rule_line)


@commands.add("rules show <RuleId>", "Show a rule")
async def show_rule(call: CommandCall) -> CommandResult:
    with _finding(call["RuleId"]):
        record, _ = await call.operations.rules.lookup(call["RuleId"])
    return CommandResult(record, _rule_line)


@commands.add(
    "rules create <SQL> <Actions> [-i <Id>] [-e <On>] [-g <Then>] [-d <D>]",
    "Create a rule; the actions are JSON",
)
async def create_rule(call: CommandCall) -> CommandResult:
    given = _rule_options(call)
    record = await call.operations.rules.create(
        call["SQL"], _actions("Actions", call["Actions"]), call.get("Id"), **given
    )
    return CommandResult(record, _done("Rule", "created"))


@commands.add(
    "rules update <Id> [-s <SQL>] [-a <A>] [-e <On>] [-g <Then>] [-d <D>]",
    "Update a rule; options that are not given stay as they are",
)
async def update_rule(call: CommandCall) -> CommandResult:
    changes = _rule_options(call)
    sql, actions = call.get("SQL"), call.get("A")
    if sql is not None:
        changes["rawsql"] = sql
    if actions is not None:
        changes["actions"] = _actions("A", actions)
    with _finding(call["Id"]):
        record = await call.operations.rules.update(call["Id"], changes)
    return CommandResult(record, _done("Rule", "updated"))


@commands.add("rules delete <RuleId>", "Delete a rule")
async def delete_rule(call: CommandCall) -> CommandResult:
    with _finding(call["RuleId"]):
        await call.operations.rules.delete(call["RuleId"])
    return CommandResult(None, OK)


@commands.add("rules reset-metrics <RuleId>", "Reset the metrics of a rule and its actions")
async def reset_metrics(call: CommandCall) -> CommandResult:
    with _finding(call["RuleId"]):
        await call.operations.rules.reset_metrics(call["RuleId"])
    return CommandResult(None, OK)


@commands.add("rules test <SQL> <Columns>", "Test SQL against column values given as JSON")
async def test_sql(call: CommandCall) -> CommandResult:
    found = await call.operations.rules.test(call["SQL"], _object("Columns", call["Columns"]))
    return CommandResult(found, _json)


@commands.add("rules trace <RuleId> [-n <Count>]", "Show the last evaluations of a rule, or set how many are kept")
async def trace_rule(call: CommandCall) -> CommandResult:
    with _finding(call["RuleId"]):
        if call.get("Count") is not None:
            await call.operations.rules.keep_trace(call["RuleId"], call.integer("Count", 0, _MAX_SIZE))
            return CommandResult(None, OK)
        found, _ = await call.operations.rules.trace(call["RuleId"])
    return CommandResult(found, lambda rows: map(_json, rows))


@commands.add("rule-actions list", "List the types of actions")
def list_actions(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.rules.actions(), lambda rows: map(_action_line, rows))


@commands.add("rule-actions show <ActionName>", "Show a type of action")
def show_action(call: CommandCall) -> CommandResult:
    with _finding(call["ActionName"]):
        return CommandResult(call.operations.rules.action(call["ActionName"]), _action_line)


@commands.add("resources list [-t <ResourceType>]", "List all resources, or those of one type")
async def list_resources(call: CommandCall) -> CommandResult:
    rows, _ = await call.operations.resources.records(call.get("ResourceType"))
    return CommandResult(rows, lambda rows: map(_resource_line, rows))


@commands.add("resources show <ResourceId>", "Show a resource")
async def show_resource(call: CommandCall) -> CommandResult:
    with _finding(call["ResourceId"]):
        record, _ = await call.operations.resources.lookup(call["ResourceId"])
    return CommandResult(record, _resource_line)


@commands.add(
    "resources create <Type> [-i <Id>] [-c <Config>] [-d <Description>]",
    "Create a resource; the configuration is JSON",
)
async def create_resource(call: CommandCall) -> CommandResult:
    config = _object("Config", call.get("Config") or "{}")
    record = await call.operations.resources.create(call["Type"], config, call.get("Id"), call.get("Description") or "")
    return CommandResult(record, _done("Resource", "created"))


@commands.add(
    "resources update <Id> [-c <Config>] [-d <Description>]",
    "Update a resource; options that are not given stay as they are",
)
async def update_resource(call: CommandCall) -> CommandResult:
    config = call.get("Config")
    with _finding(call["Id"]):
        record = await call.operations.resources.update(
            call["Id"], None if config is None else _object("Config", config), call.get("Description")
        )
    return CommandResult(record, _done("Resource", "updated"))


@commands.add(
    "resources test <ResourceType> [-c <Config>]", "Test whether a resource can be reached, without creating it"
)
async def test_resource(call: CommandCall) -> CommandResult:
    await call.operations.resources.test(call["ResourceType"], _object("Config", call.get("Config") or "{}"))
    return CommandResult(None, OK)


@commands.add("resources start <ResourceId>", "Test now whether a resource can be reached")
async def start_resource(call: CommandCall) -> CommandResult:
    with _finding(call["ResourceId"]):
        await call.operations.resources.start(call["ResourceId"])
    return CommandResult(None, OK)


@commands.add("resources delete <ResourceId>", "Delete a resource that no rule uses")
async def delete_resource(call: CommandCall) -> CommandResult:
    with _finding(call["ResourceId"]):
        await call.operations.resources.delete(call["ResourceId"])
    return CommandResult(None, OK)


@commands.add("resources dead-letters <ResourceId>", "List the dead letters of a resource")
def list_dead_letters(call: CommandCall) -> CommandResult:
    with _finding(call["ResourceId"]):
        return CommandResult(call.operations.resources.dead_letters(call["ResourceId"], 1, _ALL), _json)


@commands.add("resources send-again <ResourceId> [-n <Number>]", "Send all dead letters again, or one")
async def send_dead_letters(call: CommandCall) -> CommandResult:
    with _finding(call["ResourceId"]):
        await call.operations.resources.lookup(call["ResourceId"])
    count = await call.operations.resources.send_dead_letters(call["ResourceId"], _number(call))
    return CommandResult({"count": count}, f"{count} sent again")


@commands.add("resources clear-dead-letters <ResourceId> [-n <Number>]", "Delete all dead letters, or one")
async def clear_dead_letters(call: CommandCall) -> CommandResult:
    with _finding(call["ResourceId"]):
        await call.operations.resources.lookup(call["ResourceId"])
    count = await call.operations.resources.remove_dead_letters(call["ResourceId"], _number(call))
    return CommandResult({"count": count}, f"{count} removed")


@commands.add("resource-types list", "List the resource types")
def list_resource_types(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.resources.types(), lambda rows: map(_type_line, rows))


@commands.add("resource-types show <ResourceType>", "Show a resource type")
def show_resource_type(call: CommandCall) -> CommandResult:
    with _finding(call["ResourceType"]):
        return CommandResult(call.operations.resources.type(call["ResourceType"]), _type_line)


@commands.add("schemas list", "List the schemas")
def list_schemas(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.schemas.records(), lambda rows: map(_schema_line, rows))


@commands.add("schemas show <Name>", "Show a schema")
def show_schema(call: CommandCall) -> CommandResult:
    with _finding(call["Name"]):
        return CommandResult(call.operations.schemas.lookup(call["Name"]), _schema_line)


@commands.add("schemas create <Name> <ParserType> <Schema> [-d <Description>]", "Create a schema from its text")
async def create_schema(call: CommandCall) -> CommandResult:
    parser_type = call.choice("ParserType", *PARSER_TYPES)
    record = await call.operations.schemas.create(
        call["Name"], parser_type, call["Schema"], call.get("Description") or ""
    )
    return CommandResult(record, f"Schema {record.name} created")


@commands.add("schemas delete <Name>", "Delete a schema")
async def delete_schema(call: CommandCall) -> CommandResult:
    with _finding(call["Name"]):
        await call.operations.schemas.delete(call["Name"])
    return CommandResult(None, OK)


def _number(call: CommandCall) -> list[int] | None:
    return None if call.get("Number") is None else [call.integer("Number", 1, _ALL)]


def _rule_options(call: CommandCall) -> dict[str, Any]:
    given: dict[str, object] = {}
    if call.get("On") is not None:
        given["enabled"] = call.flag("On")
    if call.get("Then") is not None:
        given["on_action_failed"] = call.choice("Then", "continue", "stop")
    if call.get("D") is not None:
        given["description"] = call["D"]
    return given


def _actions(name: str, text: str) -> list[Any]:
    actions = _parsed(name, text)
    if not isinstance(actions, list):
        raise wrong(name, "expected a JSON array")
    return actions


def _parsed(name: str, text: str) -> object:
    try:
        return parse(text.encode())
    except Refusal as refusal:
        raise Refusal(refusal.code, f"{name}: {refusal.message.removeprefix('the body ')}") from None


def _object(name: str, text: str) -> dict[str, object]:
    value = _parsed(name, text)
    if not isinstance(value, dict):
        raise wrong(name, "expected a JSON object")
    return value


def _finding(name: str) -> AbstractContextManager[None]:
    """Return a context in which a refusal because this object does not exist becomes "not found"."""

    def words(refusal: Refusal) -> str | None:
        return NOT_FOUND if refusal.code == UNKNOWN and one_line(name) in refusal.message else None

    return telling(words)


def _done(kind: str, done: str) -> Callable[[Any], list[str | None]]:
    """Return the function that creates the lines for the record of a changed rule or resource."""

    def lines(record: RuleRecord | ResourceRecord) -> list[str | None]:
        return [f"{kind} {record.id} {done}", *(f"warning: {text}" for text in record.warnings or ())]

    return lines


def _rule_line(row: RuleRecord) -> str:
    return (
        f"rule(id='{row.id}', for='{_json(row.sources)}', rawsql='{row.rawsql}', actions={_json(row.actions)}, "
        f"on_action_failed='{row.on_action_failed}', metrics={_json(row.metrics)}, enabled='{_json(row.enabled)}', "
        f"description='{row.description}')"
    )


def _action_line(row: ActionTypeRecord) -> str:
    return (
        f"action(name='{row.name}', app='{row.app}', for='{row.events}', types={_json(row.types)}, "
        f"title ='{row.title.en}', description='{row.description.en}')"
    )


def _resource_line(row: ListedResource | ResourceRecord) -> str:
    return (
        f"resource(id='{row.id}', type='{row.type}', config={_json(row.config)}, "
        f"status={_json(row.status)}, description='{row.description}')"
    )


def _type_line(row: ResourceTypeRecord) -> str:
    return (
        f"resource_type(name='{row.name}', provider='{row.provider}', title ='{row.title.en}', "
        f"description='{row.description.en}')"
    )


def _schema_line(row: SchemaRecord) -> str:
    return (
        f"schema(name='{row.name}', parser_type='{row.parser_type}', schema='{row.schema}', descr='{row.descr}', "
        f"fault='{row.fault}')"
    )


def _json(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
