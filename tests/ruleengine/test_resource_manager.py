"""Resources as the engine keeps them: created, refused, alarmed, restarted; with a type that does as it is told."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from taipan.ruleengine.actions.action import Action, ActionContext, ActionFailed, ActionType, Row
from taipan.ruleengine.engine import RuleEngine
from taipan.ruleengine.error import RuleEngineError
from taipan.ruleengine.event import Event
from taipan.ruleengine.network.allowed_networks import NOT_TRIED
from taipan.ruleengine.params import Param, ParamError, Text
from taipan.ruleengine.records import ResourceStatus
from taipan.ruleengine.resources.resource import ResourceContext, ResourceError, ResourceType
from tests.support.rule_engine_node import KEEP, RuleEngineNode, rule_engine_node

WORDS = Text("for tests", "用于测试")


class Lamp:
    """A resource that is alive while ``lit``; all of one node hang on one switch."""

    lit = True

    def __init__(self, context: ResourceContext) -> None:
        if context.config.get("mode") == "impossible":
            raise ParamError("mode", "that cannot be")
        self.context = context
        self.alive = False
        self.closed = False

    @property
    def status(self) -> ResourceStatus:
        return ResourceStatus(node=self.context.node.node, is_alive=self.alive, connections=5)

    def start(self) -> None:
        self.look()

    def look(self) -> None:
        if self.alive != type(self).lit:
            self.alive = type(self).lit
            self.context.on_alive(self.alive)

    async def test(self) -> None:
        if not type(self).lit:
            raise ResourceError("it is dark")

    async def close(self) -> None:
        self.closed = True


class Shine:
    """An action on a lamp; fails while it is dark."""

    def __init__(self, context: ActionContext) -> None:
        self.context = context

    def run(self, row: Row, event: Event) -> bool:
        if not self.context.resource(self.context.params["$resource"]).alive:
            raise ActionFailed("dark")
        return True

    def close(self) -> None:
        pass


def equip(engine: RuleEngine, lit: bool = True) -> type[Lamp]:
    kind = type("Lamp", (Lamp,), {"lit": lit})
    params = (
        Param("mode", 1, "string", WORDS, WORDS, required=True),
        Param("password", 2, "password", WORDS, WORDS, default=""),
    )
    engine.resource_types["lamp"] = ResourceType("lamp", WORDS, WORDS, kind, params)

    def create(context: ActionContext) -> Action:
        return Shine(context)

    of = (Param("$resource", 0, "string", WORDS, WORDS, required=True),)
    engine.action_types["shine"] = ActionType("shine", WORDS, WORDS, create, of, ("lamp",))
    return kind


async def lamp(node: RuleEngineNode, **config: Any) -> str:
    record = await node.engine.resources.create("lamp", {"mode": "on", **config})
    return str(record.id)


def shine(resource: str, **more: Any) -> dict[str, Any]:
    return {"name": "shine", "params": {"$resource": resource}, **more}


@pytest.mark.asyncio
async def test_a_parameter_that_the_type_does_not_declare_has_no_effect() -> None:
    """It is kept, for an export, but the resource does not see it."""
    async with rule_engine_node() as node:
        kind = equip(node.engine)
        seen: list[dict[str, Any]] = []
        create = kind.__init__
        kind.__init__ = lambda self, context: (seen.append(context.config), create(self, context))[1]  # type: ignore
        id = await lamp(node, disk_cache="off", retry_attempts="many")
        assert seen and all(set(config) == {"mode", "password"} for config in seen)
        stored = node.engine.resources.get(id).stored
        assert stored.config["disk_cache"] == "off"


@pytest.mark.asyncio
async def test_a_change_that_connects_alike_needs_no_trial() -> None:
    async with rule_engine_node() as node:
        kind = equip(node.engine)
        type_ = node.engine.resource_types["lamp"]
        id = await lamp(node)
        kind.lit = False  # type: ignore[attr-defined]
        await node.engine.resources.update(id, {"mode": "on"})  # nothing changes
        with pytest.raises(RuleEngineError, match="cannot be reached"):
            await node.engine.resources.update(id, {"mode": "dim"})
        type_.connection = ("password",)
        record = await node.engine.resources.update(id, {"mode": "dim"})
        assert record.config["mode"] == "dim" and not record.status[0].is_alive
        with pytest.raises(RuleEngineError, match="cannot be reached"):
            await node.engine.resources.update(id, {"mode": "dim", "password": "other"})


@pytest.mark.asyncio
async def test_the_record_of_a_resource() -> None:
    async with rule_engine_node() as node:
        equip(node.engine)
        record = await node.engine.resources.create("lamp", {"mode": "on", "password": "secret"}, description="d")
        assert record.id.startswith("resource:") and len(record.id) == 17
        assert msgspec.to_builtins(record) == {
            "id": record.id, "type": "lamp", "config": {"mode": "on", "password": "******"}, "description": "d",
            "status": [{"node": "taipan@127.0.0.1", "is_alive": True, "connections": 5}],
        }  # fmt: skip
        assert node.engine.resources.records() == node.engine.resources.records("lamp")
        assert msgspec.to_builtins(node.engine.resources.records()) == [msgspec.to_builtins(record) | {"status": True}]
        assert node.engine.resources.stored()[0].config["password"] == "secret"


@pytest.mark.parametrize(
    "type, config, more, kind",
    [
        ("nothing", {}, {}, "unknown"),
        ("lamp", {}, {}, "missing"),
        ("lamp", {"mode": 5}, {}, "wrong"),
        ("lamp", {"mode": "impossible"}, {}, "wrong"),
        ("lamp", {"mode": "on"}, {"id": ""}, "wrong"),
        ("lamp", {"mode": "on"}, {"id": "mine"}, "exists"),
    ],
)
@pytest.mark.asyncio
async def test_what_is_refused_at_creation(type: str, config: Any, more: Any, kind: str) -> None:
    async with rule_engine_node() as node:
        equip(node.engine)
        await node.engine.resources.create("lamp", {"mode": "on"}, id="mine")
        with pytest.raises(RuleEngineError) as refused:
            await node.engine.resources.create(type, config, **more)
        assert refused.value.kind == kind
        assert len(node.engine.resources.records()) == 1


@pytest.mark.asyncio
async def test_a_resource_in_use_stays() -> None:
    async with rule_engine_node() as node:
        equip(node.engine)
        id = await lamp(node)
        first = await node.rule('SELECT * FROM "t"', shine(id))
        second = await node.rule('SELECT * FROM "t"', {**KEEP, "fallbacks": [shine(id)]}, enabled=False)
        with pytest.raises(RuleEngineError) as refused:
            await node.engine.resources.delete(id)
        assert refused.value.kind == "in_use" and refused.value.ids == (first, second)
        assert first in refused.value.message and second in refused.value.message
        with pytest.raises(RuleEngineError) as refused:
            await node.engine.resources.update(id, {"mode": "off"})
        assert refused.value.ids == (first,)
        await node.engine.resources.update(id, description="words are free")
        await node.engine.rules.delete(first)
        await node.engine.rules.delete(second)
        instance: Any = node.engine.resources.running(id)
        await node.engine.resources.delete(id)
        assert instance.closed and node.engine.resources.records() == []
        with pytest.raises(RuleEngineError) as refused:
            await node.engine.resources.delete(id)
        assert refused.value.kind == "unknown"


@pytest.mark.asyncio
async def test_a_resource_stays_that_a_rule_begins_to_use_while_its_change_is_tried() -> None:
    async with rule_engine_node() as node:
        kind = equip(node.engine)
        id = await lamp(node)
        instance: Any = node.engine.resources.running(id)
        trying, go_on = asyncio.Event(), asyncio.Event()

        async def test(lamp: Lamp) -> None:
            trying.set()
            await go_on.wait()

        kind.test = test  # type: ignore[method-assign]
        change = asyncio.ensure_future(node.engine.resources.update(id, {"mode": "off"}))
        await trying.wait()
        rule = await node.rule('SELECT * FROM "t"', shine(id))
        go_on.set()
        with pytest.raises(RuleEngineError) as refused:
            await change
        assert refused.value.kind == "in_use" and refused.value.ids == (rule,)
        assert node.engine.resources.running(id) is instance and not instance.closed
        assert node.engine.resources.lookup(id).config["mode"] == "on"


@pytest.mark.asyncio
async def test_a_rule_on_a_resource_that_is_being_changed_is_told_why_it_cannot_start() -> None:
    async with rule_engine_node() as node:
        kind = equip(node.engine)
        id = await lamp(node)
        closing, go_on = asyncio.Event(), asyncio.Event()
        running = node.engine.resources.running(id)

        async def close(lamp: Lamp) -> None:
            if lamp is running:
                closing.set()
                await go_on.wait()

        kind.close = close  # type: ignore[method-assign]
        change = asyncio.ensure_future(node.engine.resources.update(id, {"mode": "off"}))
        await closing.wait()
        with pytest.raises(RuleEngineError, match="could not be started: it is being changed"):
            await node.rule('SELECT * FROM "t"', shine(id))
        go_on.set()
        assert (await change).config["mode"] == "off"
        assert node.engine.resources.lookup(id).fault is UNSET
        await node.rule('SELECT * FROM "t"', shine(id))


@pytest.mark.asyncio
async def test_a_rule_wants_a_resource_of_the_right_type() -> None:
    async with rule_engine_node() as node:
        equip(node.engine)
        node.engine.resource_types["other"] = ResourceType("other", WORDS, WORDS, Lamp, ())
        other = await node.engine.resources.create("other", {})
        with pytest.raises(RuleEngineError) as refused:
            await node.rule('SELECT * FROM "t"', shine(other.id))
        assert refused.value.kind == "wrong" and "lamp" in refused.value.message


@pytest.mark.asyncio
async def test_a_resource_that_has_not_tried_yet_raises_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each start of the node a bridge is not connected for a moment."""
    reason = NOT_TRIED
    kind_status = Lamp.status.fget
    assert kind_status is not None

    def status(self: Lamp) -> ResourceStatus:
        return msgspec.structs.replace(kind_status(self), reason="" if self.alive else reason)

    monkeypatch.setattr(Lamp, "status", property(status))
    async with rule_engine_node() as node:
        kind = equip(node.engine)
        id = await lamp(node)
        alarm = f"resource/lamp/{id}/down"
        instance: Any = node.engine.resources.running(id)
        kind.lit = False  # type: ignore[attr-defined]
        instance.look()
        node.engine.resources.tick()
        assert alarm not in node.server.alarms.active
        reason = "refused"
        node.engine.resources.tick()
        assert node.server.alarms.active[alarm].details["fault"] == "refused"


@pytest.mark.asyncio
async def test_the_alarm_of_a_resource_that_is_down() -> None:
    async with rule_engine_node() as node:
        kind = equip(node.engine, lit=False)
        id = await lamp(node)
        alarm = f"resource/lamp/{id}/down"
        assert alarm in node.server.alarms.active
        assert node.engine.resources.lookup(id).status[0].is_alive is False
        with pytest.raises(RuleEngineError, match="it is dark"):
            await node.engine.resources.start(id)
        rule = await node.rule('SELECT * FROM "t"', shine(id))
        assert node.engine.rules.lookup(rule).enabled
        instance: Any = node.engine.resources.running(id)
        kind.lit = True
        instance.look()
        assert alarm not in node.server.alarms.active
        await node.engine.resources.start(id)
        kind.lit = False
        instance.look()
        assert alarm in node.server.alarms.active
        await node.engine.rules.delete(rule)
        await node.engine.resources.delete(id)
        assert alarm not in node.server.alarms.active


@pytest.mark.asyncio
async def test_trying_a_configuration_stores_nothing() -> None:
    async with rule_engine_node() as node:
        kind = equip(node.engine)
        await node.engine.resources.test("lamp", {"mode": "on"})
        kind.lit = False
        with pytest.raises(RuleEngineError, match="dark"):
            await node.engine.resources.test("lamp", {"mode": "on"})
        assert node.engine.resources.records() == [] and not node.server.alarms.active


@pytest.mark.asyncio
async def test_a_change_keeps_what_was_masked() -> None:
    async with rule_engine_node() as node:
        equip(node.engine)
        id = await lamp(node, password="secret")
        old: Any = node.engine.resources.running(id)
        await node.engine.resources.update(id, {"mode": "dim", "password": "******"})
        assert old.closed and node.engine.resources.running(id) is not old
        assert node.engine.resources.stored()[0].config == {"mode": "dim", "password": "secret"}
        with pytest.raises(RuleEngineError):
            await node.engine.resources.update(id, {"mode": "impossible"})
        assert node.engine.resources.stored()[0].config["mode"] == "dim"


@pytest.mark.asyncio
async def test_resources_survive_and_a_rule_waits_for_one_that_cannot_start(tmp_path: Path) -> None:
    level: dict[str, Any] = {"durability": {"level": "disk"}, "data_dir": str(tmp_path)}
    async with rule_engine_node(**level) as node:
        equip(node.engine)
        id = await lamp(node)
        rule = await node.rule('SELECT * FROM "t"', shine(id))
        off = await node.rule('SELECT * FROM "t"', shine(id), enabled=False)
        assert await node.server.tables.stored()
    async with rule_engine_node(**level) as node:
        # Started without its types, as after an update that lacks them: everything is there, and says why it rests.
        node._complaints.records.clear()
        assert node.engine.resources.lookup(id).fault
        assert node.engine.rules.lookup(rule).suspended and not node.engine.rules.lookup(rule).enabled
        await node.pass_time(1)
        await node.pass_time(10)
        assert f"resource/lamp/{id}/down" in node.server.alarms.active
        equip(node.engine)
        await node.engine.resources.start(id)
        assert node.engine.rules.lookup(rule).enabled and node.engine.rules.lookup(rule).suspended is UNSET
        assert not node.engine.rules.lookup(off).enabled
        assert not node.server.alarms.active
        client = await node.client()
        await client.publish("t")
        await asyncio.sleep(0)
        assert node.engine.rules.lookup(rule).actions[0].metrics[0].success == 1


@pytest.mark.asyncio
async def test_an_error_that_a_type_does_not_expect_is_an_answer() -> None:
    async with rule_engine_node() as node:
        kind = equip(node.engine, lit=False)

        async def test(lamp: Lamp) -> None:
            raise RuntimeError("the socket is closed")

        kind.test = test  # type: ignore[method-assign]
        id = await lamp(node)
        (status,) = node.engine.resources.lookup(id).status or ()
        assert not status.is_alive
        for refused in (node.engine.resources.start(id), node.engine.resources.test("lamp", {"mode": "on"})):
            with pytest.raises(RuleEngineError, match="cannot be reached: the socket is closed"):
                await refused
        assert sum("resource_test_failed" in each for each in node._complaints.records) == 3
        node._complaints.records.clear()
