"""The commands alarms, trace, traces and explain: events, and their reasons."""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import msgspec

from taipan.broker.extensions.tracing import Kind
from taipan.broker.observability.log_text import NOTHING

from ..operations.alarm_targets import SilenceRecord, TargetRecord
from ..operations.alarm_thresholds import ThresholdRecord
from ..operations.alarms import AlarmRecord
from ..operations.annotations import MAX_ANNOTATIONS, MAX_TIME, AnnotationRecord, AnnotationsQuery
from ..operations.audit import AuditQuery, AuditRecord
from ..operations.delivery_check import DeliveryExplained, DeliveryQuery
from ..operations.explain import NOTHING_RECORDED
from ..operations.refusal import NOT_ONLINE, UNKNOWN, WRONG, Refusal
from ..operations.times import local_text
from ..operations.top_lists import TopClientsQuery, TopGroupsQuery, TopTopicsQuery, TopTroublesQuery
from ..operations.tracing import TraceRecord
from .command import OK, CommandCall, CommandResult, Commands, Failure, finding, telling, told, word

commands = Commands()

_NOT_IN_LINES: Final = frozenset({"counts", "text", "advice", "clientid_cut", "topic_cut"})
"""Members of top lists that only ``--json`` shows."""
_OF_EVENT_LINES: Final = frozenset({"at", "text", "advice", "detail"})
"""Members of an event that stand before or below its line."""
_TRACE_SECONDS: Final = 900
_MAX_SECONDS: Final = 31_536_000
_NUMBER: Final = re.compile(r"[0-9]{1,13}(\.[0-9]{1,6})?", re.ASCII)
_KINDS: Final = {"client": "clientid", "clientid": "clientid", "topic": "topic", "ip_address": "ip_address"}


@commands.add("alarms list [<Which>]", "List alarms: all, activated or deactivated")
def list_alarms(call: CommandCall) -> CommandResult:
    which = "all" if call.get("Which") is None else call.choice("Which", "all", "activated", "deactivated")
    records = call.operations.alarms.records(which)  # type: ignore[arg-type]
    return CommandResult(records, lambda rows: [_alarm_line(row) for row in rows])


@commands.add("alarms deactivate <Name>", "Deactivate an alarm")
def deactivate_alarm(call: CommandCall) -> CommandResult:
    call.operations.alarms.deactivate(call["Name"])
    return CommandResult(None, OK)


@commands.add("alarms clean", "Delete the deactivated alarms")
def clean_alarms(call: CommandCall) -> CommandResult:
    call.operations.alarms.forget()
    return CommandResult(None, OK)


@commands.add("alarms targets", "List the alarm targets, with the status of this node")
def list_alarm_targets(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.alarm_targets.listing_here(), lambda rows: [_target_line(row) for row in rows])


@commands.add("alarms test <Target>", "Send a test notice to an alarm target")
async def test_alarm_target(call: CommandCall) -> CommandResult:
    warning = await call.operations.alarm_targets.test(call["Target"])
    return CommandResult({"warning": warning}, lambda data: data["warning"] or OK)


@commands.add("silences list", "List the silences, which keep alarms back from targets")
def list_silences(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.alarm_targets.silences(), lambda rows: [_silence_line(row) for row in rows])


@commands.add("silences add <Alarms> <Seconds> [--reason <Reason>]", "Keep alarms back from targets, for some seconds")
async def add_silence(call: CommandCall) -> CommandResult:
    until = call.operations.server.clock.wall() + call.integer("Seconds", 1, _MAX_SECONDS)
    reason = call.get("Reason") or ""
    name = await call.operations.alarm_targets.silence(call["Alarms"], until, reason, call.app)
    return CommandResult({"id": name}, lambda data: data["id"])


@commands.add("silences del <Id>", "End a silence")
async def delete_silence(call: CommandCall) -> CommandResult:
    with finding():
        await call.operations.alarm_targets.end_silence(call["Id"])
    return CommandResult(None, OK)


@commands.add("thresholds list", "List the thresholds of figures that raise alarms")
def list_thresholds(call: CommandCall) -> CommandResult:
    rows = call.operations.alarm_thresholds.records()
    return CommandResult(rows, lambda rows: [_threshold_line(row) for row in rows])


@commands.add("thresholds set <Figure> <Value>", "Set the threshold of a figure; off: no alarm")
async def set_threshold(call: CommandCall) -> CommandResult:
    text = call["Value"]
    if text != "off" and not _NUMBER.fullmatch(text):
        raise Refusal(WRONG, "Value: expected a number from 0 to 1e12, or off")
    with finding():
        await call.operations.alarm_thresholds.set(call["Figure"], None if text == "off" else float(text))
    return CommandResult(None, OK)


def _silence_line(row: SilenceRecord) -> str:
    by, reason = row.created_by or NOTHING, row.reason or NOTHING
    return f"Silence({row.id}, alarms={row.alarms}, until={local_text(row.until)}, by={by}, reason={reason})"


def _threshold_line(row: ThresholdRecord) -> str:
    side = "below" if row.below else "above"
    value = "off" if row.value is None else f"{row.value:g}"
    return f"Threshold({row.name}, {side}={value}, current={told(row.current)}, unit={row.unit or NOTHING})"


def _target_line(row: TargetRecord) -> str:
    (status,) = row.status
    return (
        f"AlarmTarget({row.id}, type={row.type}, state={status.state}, sent={status.sent}, failed={status.failed}, "
        f"dropped={status.dropped}, waiting={status.waiting}, last_error={status.last_error or NOTHING})"
    )


def _alarm_line(row: AlarmRecord) -> str:
    return (
        f"Alarm({row.name}, activated={word(row.activated)}, activate_at={told(row.activate_at)}, "
        f"deactivate_at={told(row.deactivate_at)}, message={row.message})"
    )


# traces, as in EMQX 4.4


@commands.add("traces list", "List the traces")
async def list_traces(call: CommandCall) -> CommandResult:
    found, _ = await call.operations.tracing.listing()
    return CommandResult(found, lambda rows: [_traces_line(row) for row in rows] or "Cluster Trace is empty")


@commands.add(
    "traces start <Name> <Type> <Value> [<Seconds>]",
    "Trace a clientid, topic or ip_address (Type), for 900 seconds by default",
)
async def start_traces(call: CommandCall) -> CommandResult:
    kind = call.choice("Type", "clientid", "topic", "ip_address")
    record = await _start(call, call["Name"], kind, _seconds(call))
    return CommandResult(record, lambda row: f"Cluster_trace {kind} {row.condition} {row.name} successfully")


@commands.add("traces stop <Name>", "Stop a trace; its file stays")
async def stop_traces(call: CommandCall) -> CommandResult:
    with finding():
        await call.operations.tracing.stop(call["Name"])
    return CommandResult({"name": call["Name"], "enable": False}, f"Stop cluster_trace {call['Name']} successfully")


@commands.add("traces delete <Name>", "Delete a trace and its file")
async def delete_traces(call: CommandCall) -> CommandResult:
    with finding():
        await call.operations.tracing.delete(call["Name"])
    return CommandResult(None, f"Del cluster_trace {call['Name']} successfully")


# trace, as in all EMQX 4.x


@commands.add("trace list", "List the running traces")
async def list_trace(call: CommandCall) -> CommandResult:
    found, _ = await call.operations.tracing.listing()
    rows = [row for row in found if row.status == "running"]
    return CommandResult(rows, lambda rows: [_trace_line(call, row) for row in rows])


@commands.add(
    "trace start <Type> <Value> <Name> [--seconds <Seconds>]", "Trace a client, topic or ip_address (Type) to a file"
)
async def start_trace(call: CommandCall) -> CommandResult:
    kind = _KINDS[call.choice("Type", *_KINDS)]
    record = await _start(call, call["Name"], kind, _seconds(call))
    return CommandResult(record, lambda row: f"trace {kind} {row.condition} successfully")


@commands.add("trace stop <Type> <Value>", "Stop the traces of a client, topic or ip_address")
async def stop_trace(call: CommandCall) -> CommandResult:
    kind = _KINDS[call.choice("Type", *_KINDS)]
    found, _ = await call.operations.tracing.listing()
    running = [row for row in found if row.type == kind and row.condition == call["Value"] and row.status != "stopped"]
    if not running:
        raise Failure(UNKNOWN, f"no trace of {kind} {call['Value']} runs", "no such trace runs")
    for row in running:
        await call.operations.tracing.stop(row.name)
    return CommandResult(None, f"stop tracing {kind} {call['Value']} successfully")


async def _start(call: CommandCall, name: str, kind: str, seconds: int) -> TraceRecord:
    end = call.operations.server.clock.now() + seconds
    return await call.operations.tracing.create(name, cast(Kind, kind), call["Value"], None, end)


def _seconds(call: CommandCall) -> int:
    return _TRACE_SECONDS if call.get("Seconds") is None else call.integer("Seconds", 1, _MAX_SECONDS)


def _traces_line(row: TraceRecord) -> str:
    sizes = ", ".join(f"{node}:{size}" for node, size in row.log_size.items())
    return f"Trace({row.name}: {row.type}={row.condition}, {row.status}, LogSize:{sizes})"


def _trace_line(call: CommandCall, row: TraceRecord) -> str:
    destination = os.path.abspath(call.operations.server.tracing.path(row.name))
    return f"Trace({row.type}={row.condition}, level=debug, destination={destination})"


# audit


@commands.add("audit list [--count <N>]", "List the latest changes of all nodes: who changed what, and how")
async def list_audit(call: CommandCall) -> CommandResult:
    limit = 50 if call.get("N") is None else call.integer("N", 1, 10_000)
    found = await call.operations.audit.listing(AuditQuery(limit=limit), limit)
    return CommandResult(found, _audit_line)


def _audit_line(row: AuditRecord) -> str:
    keys = ("door", "who", "address", "what", "target", "node")
    return f"{row.at} Change({', '.join(f'{key}={told(getattr(row, key) or None)}' for key in keys)})"


# annotations


@commands.add("annotate <Text> [--at <Time>]", "Mark a moment in the charts, now or at a time in Unix seconds")
async def annotate(call: CommandCall) -> CommandResult:
    at = None if call.get("Time") is None else float(call.integer("Time", 0, MAX_TIME))
    name = await call.operations.annotations.add(call["Text"], at, call.app)
    return CommandResult({"id": name}, lambda data: data["id"])


@commands.add("annotations list [--count <N>]", "List the latest annotations")
def list_annotations(call: CommandCall) -> CommandResult:
    limit = 50 if call.get("N") is None else call.integer("N", 1, MAX_ANNOTATIONS)
    found = call.operations.annotations.listing(AnnotationsQuery(limit=limit))
    return CommandResult(found, lambda rows: [_annotation_line(row) for row in rows])


@commands.add("annotations del <Id>", "Delete an annotation")
async def delete_annotation(call: CommandCall) -> CommandResult:
    with finding():
        await call.operations.annotations.delete(call["Id"])
    return CommandResult(None, OK)


def _annotation_line(row: AnnotationRecord) -> str:
    return f"{row.at} Annotation({row.id}, by={told(row.created_by or None)}, text={told(row.text)})"


# top lists


@commands.add(
    "top list <List> [--limit <N>]",
    "Show a top list: clients, topics, groups, refused or dropped (List)",
)
async def list_top(call: CommandCall) -> CommandResult:
    lists = call.operations.top_lists
    limit = 20 if call.get("N") is None else call.integer("N", 1, 100)
    rows: Sequence[msgspec.Struct]
    match call.choice("List", "clients", "topics", "refused", "dropped", "groups"):
        case "clients":
            rows, _ = await lists.clients(TopClientsQuery(limit=limit))
        case "topics":
            rows, _ = await lists.topics(TopTopicsQuery(limit=limit))
        case "refused":
            rows, _ = await lists.refused(TopTroublesQuery(limit=limit))
        case "dropped":
            rows, _ = await lists.dropped(TopTroublesQuery(limit=limit))
        case _:
            rows, _ = await lists.groups(TopGroupsQuery(limit=limit))
    return CommandResult(rows, lambda rows: [_top_line(row) for row in rows])


def _top_line(row: msgspec.Struct) -> str:
    facts = msgspec.to_builtins(row)
    return f"Top({', '.join(f'{key}={told(value)}' for key, value in facts.items() if key not in _NOT_IN_LINES)})"


# explain


@commands.add("explain client <ClientId>", "Show what happened to a client recently, and why")
async def explain_client(call: CommandCall) -> CommandResult:
    with telling(lambda refusal: NOTHING_RECORDED if refusal.code == NOT_ONLINE else None):
        found, _ = await call.operations.explain.client(call["ClientId"])
    return CommandResult(found, _explained_client)


@commands.add("explain topic <Topic>", "Show who would receive a message published to a topic now")
async def explain_topic(call: CommandCall) -> CommandResult:
    found, _ = await call.operations.explain.topic(call["Topic"])
    return CommandResult(found, _explained_topic)


@commands.add("explain delivery <ClientId> <Topic>", "Show why a client does or does not receive a topic")
async def explain_delivery(call: CommandCall) -> CommandResult:
    query = DeliveryQuery(clientid=call["ClientId"], topic=call["Topic"])
    return CommandResult(await call.operations.delivery_checks.explain(query), _explained_delivery)


def _explained_delivery(found: DeliveryExplained) -> Iterator[str]:
    yield f"Delivery({found.clientid}, topic={found.topic}, outcome={found.outcome}, reason={found.reason})"
    for each in found.checks:
        setting = f", setting={each.setting}" if each.setting else ""
        yield f"Check({each.check}, result={each.result}, text={each.text}{setting})"


def _explained_client(data: dict[str, Any]) -> Iterator[str]:
    yield f"Client({data['clientid']}, connected={told(data['connected'])})"
    if data["session"] is None:
        yield "no session"
    else:
        yield f"Session({', '.join(f'{key}={told(value)}' for key, value in data['session'].items())})"
    for event in data["events"]:
        facts = {key: value for key, value in event.items() if value and key not in _OF_EVENT_LINES}
        if event["last_at"] == event["at"]:
            del facts["last_at"]
        yield f"{event['at']} Event({', '.join(f'{key}={told(value)}' for key, value in facts.items())})"
        said = {event["reason"], event["text"]}
        yield from (f"  {each}" for each in (event["text"], event["advice"]) if each)
        if event["detail"] and event["detail"] not in said:
            yield f"  detail: {told(event['detail'])}"


def _explained_topic(data: dict[str, Any]) -> Iterator[str]:
    yield f"Topic({data['topic']}, receivers={data['receivers_count']}, delayed={told(data['delayed'])})"
    for each in data["receivers"]:
        facts = ", ".join(f"{key}={told(each[key])}" for key in ("connected", "topic", "qos"))
        yield f"Receiver({each['clientid']}, {facts})"
    for group in data["shared"]:
        yield f"Shared({group['topic']}, members={','.join(group['members'])})"
    if data["retained"] is not None:
        yield f"Retained({', '.join(f'{key}={told(value)}' for key, value in data['retained'].items())})"
