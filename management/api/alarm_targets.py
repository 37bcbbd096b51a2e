"""/alarm_targets, /alarm_silences, /alarm_thresholds: where alarms are sent, which are kept back for a time, and the
values above which figures raise one."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..alarm_targets.kinds import Kind
from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.alarm_targets import SilenceRecord, TargetRecord
from ..operations.alarm_thresholds import ThresholdRecord

routes = Endpoints("Alarm targets")

Pattern = Annotated[str, Meta(min_length=1, max_length=256)]
Patterns = Annotated[list[Pattern], Meta(min_length=1, max_length=50)]


class NewTarget(msgspec.Struct):
    """``alarms``: patterns of alarm names, of which one must match; ``*`` stands for any text."""

    id: str
    type: Kind
    config: dict[str, Any]
    enabled: bool = True
    alarms: Patterns = msgspec.field(default_factory=lambda: ["*"])


class TargetUpdate(msgspec.Struct):
    """The whole configuration; ``******`` stands for a secret that stays."""

    config: dict[str, Any]
    enabled: bool = True
    alarms: Patterns = msgspec.field(default_factory=lambda: ["*"])


class TestResult(msgspec.Struct):
    """``warning``: what went wrong although the notice was sent, such as a refused recipient; or empty."""

    warning: str


class NewSilence(msgspec.Struct):
    """``alarms``: a pattern of alarm names. ``until``: Unix seconds."""

    until: Annotated[int, Meta(ge=0, le=253_402_300_799)]
    alarms: Pattern = "*"
    reason: Annotated[str, Meta(max_length=1024)] = ""


class NewThreshold(msgspec.Struct):
    """``value``: null: no alarm."""

    value: Annotated[float, Meta(ge=0, le=1e12)] | None


class SilenceId(msgspec.Struct):
    id: str


@routes.get("/alarm_targets", "Targets of alarms, with their status on all nodes", reply=OfNodes(list[TargetRecord]))
async def list_alarm_targets(call: Call) -> list[TargetRecord] | Extra:
    return of_nodes(*await call.operations.alarm_targets.listing())


@routes.get("/alarm_targets/{id}", "An alarm target, with its status on this node", reply=TargetRecord)
def lookup_alarm_target(call: Call) -> TargetRecord:
    return call.operations.alarm_targets.shown(call.path["id"])


@routes.post("/alarm_targets", "Create an alarm target", body=NewTarget)
async def add_alarm_target(call: Call) -> None:
    body: NewTarget = call.body
    await call.operations.alarm_targets.add(body.id, body.type, body.enabled, body.alarms, body.config)


@routes.put("/alarm_targets/{id}", "Change an alarm target", body=TargetUpdate)
async def update_alarm_target(call: Call) -> None:
    body: TargetUpdate = call.body
    await call.operations.alarm_targets.update(call.path["id"], body.enabled, body.alarms, body.config)


@routes.delete("/alarm_targets/{id}", "Delete an alarm target")
async def delete_alarm_target(call: Call) -> None:
    await call.operations.alarm_targets.delete(call.path["id"])


@routes.post("/alarm_targets/{id}/test", "Send a test notice to a target from this node", reply=TestResult)
async def test_alarm_target(call: Call) -> TestResult:
    return TestResult(await call.operations.alarm_targets.test(call.path["id"]))


@routes.get("/alarm_silences", "Silences: alarms that are kept back from targets", reply=list[SilenceRecord])
def list_alarm_silences(call: Call) -> list[SilenceRecord]:
    return call.operations.alarm_targets.silences()


@routes.get("/alarm_silences/{id}", "A silence", reply=SilenceRecord)
def lookup_alarm_silence(call: Call) -> SilenceRecord:
    return call.operations.alarm_targets.silence_record(call.path["id"])


@routes.post("/alarm_silences", "Keep alarms back from targets until a time", body=NewSilence, reply=SilenceId)
async def add_alarm_silence(call: Call) -> SilenceId:
    body: NewSilence = call.body
    by = call.caller.name
    return SilenceId(await call.operations.alarm_targets.silence(body.alarms, float(body.until), body.reason, by))


@routes.delete("/alarm_silences/{id}", "End a silence")
async def delete_alarm_silence(call: Call) -> None:
    await call.operations.alarm_targets.end_silence(call.path["id"])


@routes.get("/alarm_thresholds", "Thresholds of figures that raise alarms", reply=list[ThresholdRecord])
def list_alarm_thresholds(call: Call) -> list[ThresholdRecord]:
    return call.operations.alarm_thresholds.records()


@routes.get("/alarm_thresholds/{name}", "The threshold of a figure", reply=ThresholdRecord)
def lookup_alarm_threshold(call: Call) -> ThresholdRecord:
    return call.operations.alarm_thresholds.record(call.path["name"])


@routes.put("/alarm_thresholds/{name}", "Set the threshold of a figure", body=NewThreshold)
async def set_alarm_threshold(call: Call) -> None:
    body: NewThreshold = call.body
    await call.operations.alarm_thresholds.set(call.path["name"], body.value)
