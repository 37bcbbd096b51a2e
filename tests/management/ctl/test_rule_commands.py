"""rules, rule-actions, resources, resource-types."""

import json

import pytest

from tests.support.api import managed_node
from tests.support.ctl import ctl, ctl_json, done, refused
from tests.support.http_sink import HttpSink, status
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

SQL = 'SELECT payload.x as x FROM "t/#" WHERE x = 1'
INSPECT = '[{"name": "inspect", "params": {}}]'
QUICK = {"liveness_interval": 0.05, "liveness_timeout": 60.0}


async def test_rules() -> None:
    async with managed_node() as node:
        assert await done(node, "rules", "list") == []
        assert await done(node, "rules", "create", SQL, INSPECT, "-i", "rule:1", "-d", "what for", "-g", "stop") == [
            "Rule rule:1 created"
        ]
        (line,) = await done(node, "rules", "show", "rule:1")
        begin = f"""rule(id='rule:1', for='["t/#"]', rawsql='{SQL}', actions=[{{"id":"inspect_"""
        assert line.startswith(begin)
        assert line.endswith("enabled='true', description='what for')") and "on_action_failed='stop'" in line
        assert await done(node, "rules", "list") == [line]
        assert [each["id"] for each in await ctl_json(node, "rules", "list")] == ["rule:1"]
        updated = await done(node, "rules", "update", "rule:1", "-e", "false", "-s", 'SELECT * FROM "u"', "-a", "[]")
        assert updated == ["Rule rule:1 updated"]
        record = await ctl_json(node, "rules", "show", "rule:1")
        assert (record["enabled"], record["for"], record["actions"]) == (False, ["u"], [])
        assert (record["description"], record["on_action_failed"]) == ("what for", "stop")
        assert await done(node, "rules", "reset-metrics", "rule:1") == ["ok"]
        assert await done(node, "rules", "delete", "rule:1") == ["ok"]
        for words in ("show", "delete", "reset-metrics", "update", "trace"):
            assert await refused(node, "rules", words, "rule:1") == "rule rule:1: not found"


async def test_what_has_no_effect_is_said() -> None:
    async with managed_node() as node:
        action = '[{"name": "do_nothing", "params": {"x": 1}}]'
        said = "warning: x: do_nothing has no such parameter; the value has no effect"
        assert await done(node, "rules", "create", SQL, action, "-i", "rule:1") == ["Rule rule:1 created", said]
        assert await done(node, "rules", "update", "rule:1", "-a", action) == ["Rule rule:1 updated", said]
        made = await done(
            node, "resources", "create", "web_hook", "-i", "h", "-c", '{"url": "http://127.0.0.1:1", "z": 1}'
        )
        said = "warning: z: web_hook has no such parameter; the value has no effect"
        assert made == ["Resource h created", said]
        updated = await done(node, "resources", "update", "h", "-c", '{"url": "http://127.0.0.1:1", "z": 2}')
        assert updated == ["Resource h updated", said]


@pytest.mark.parametrize(
    "words, about",
    [
        (("SELECT", INSPECT), "rawsql"),
        ((SQL, "{"), "not JSON"),
        ((SQL, "{}"), "expected a JSON array"),
        ((SQL, '[{"name": "inspect"}]'), "params is missing"),
        ((SQL, '[{"name": "none", "params": {}}]'), "no action none"),
        ((SQL, INSPECT, "-e", "maybe"), "-e:"),
        ((SQL, INSPECT, "-g", "panic"), "option -g:"),
    ],
)
async def test_a_wrong_rule(words: tuple[str, ...], about: str) -> None:
    async with managed_node() as node:
        said = await ctl(node, "rules", "create", *words)
        assert said.status == 1 and about in said.out
        assert await ctl_json(node, "rules", "list") == []


async def test_trying_and_tracing() -> None:
    async with managed_node() as node:
        columns = json.dumps({"topic": "t/1", "payload": '{"x":1}'})
        assert await done(node, "rules", "test", SQL, columns) == ['{"x":1}']
        said = await ctl(node, "rules", "test", SQL, '{"topic": "u"}')
        assert said.status == 1 and "SQL Not Match" in said.out
        await done(node, "rules", "create", SQL, INSPECT, "-i", "rule:1")
        assert await done(node, "rules", "trace", "rule:1", "-n", "5") == ["ok"]
        await (await node.client("c1", 4)).publish("t/1", b'{"x":1}', 1)
        (line,) = await done(node, "rules", "trace", "rule:1")
        assert json.loads(line)["rows"] == ['{"x":1}']
        assert (await ctl(node, "rules", "trace", "rule:1", "-n", "101")).status == 1


async def test_resources() -> None:
    sink = await HttpSink().start()
    async with managed_node(ruleengine=QUICK) as node:
        config = json.dumps({"url": sink.url})
        assert await done(node, "resources", "test", "web_hook", "-c", config) == ["ok"]
        assert await done(node, "resources", "list") == []
        created = await done(node, "resources", "create", "web_hook", "-i", "resource:1", "-c", config, "-d", "a hook")
        assert created == ["Resource resource:1 created"]
        (line,) = await done(node, "resources", "list", "-t", "web_hook")
        assert line.startswith(f"""resource(id='resource:1', type='web_hook', config={{"url":"{sink.url}",""")
        assert line.endswith("status=true, description='a hook')")
        assert await done(node, "resources", "list", "-t", "bridge_mqtt") == []
        shown = await ctl_json(node, "resources", "show", "resource:1")
        assert shown["status"][0]["is_alive"] is True
        assert await done(node, "resources", "start", "resource:1") == ["ok"]
        assert await done(node, "resources", "update", "resource:1", "-d", "x") == ["Resource resource:1 updated"]
        action = json.dumps([{"name": "data_to_webserver", "params": {"$resource": "resource:1"}}])
        await done(node, "rules", "create", 'SELECT * FROM "t"', action, "-i", "rule:1")
        said = await ctl(node, "resources", "delete", "resource:1")
        assert said.status == 1 and said.out.startswith("error: resource resource:1: ") and "rule:1" in said.out
        await done(node, "rules", "delete", "rule:1")
        assert await done(node, "resources", "delete", "resource:1") == ["ok"]
        for word in ("show", "delete", "start", "update"):
            assert await refused(node, "resources", word, "resource:1") == "resource resource:1: not found"
        assert (await ctl(node, "resources", "create", "web_hook", "-c", "[]")).status == 1
        missing = await ctl(node, "resources", "create", "web_hook")
        assert missing.status == 1 and "url is missing" in missing.out
    await sink.stop()


async def test_rows_that_were_set_aside() -> None:
    sink = await HttpSink().start()
    sink.answer = status(500)
    async with managed_node(ruleengine={**QUICK, "retry_attempts": 1}) as node:
        await done(node, "resources", "create", "web_hook", "-i", "resource:1", "-c", json.dumps({"url": sink.url}))
        action = json.dumps([{"name": "data_to_webserver", "params": {"$resource": "resource:1"}}])
        await done(node, "rules", "create", 'SELECT payload FROM "t"', action, "-i", "rule:1")
        client = await node.client("c1", 4)
        for number in range(3):
            await client.publish("t", b"%d" % number, 1)
        await until(lambda: node.engine.buffers.dead_letters.count("resource:1") == 3)
        lines = await done(node, "resources", "dead-letters", "resource:1")
        assert [json.loads(json.loads(line)["row"]) for line in lines] == [{"payload": str(n)} for n in range(3)]
        assert await done(node, "resources", "clear-dead-letters", "resource:1", "-n", "1") == ["1 removed"]
        sink.answer = status(200)
        assert await done(node, "resources", "send-again", "resource:1", "-n", "2") == ["1 sent again"]
        assert await done(node, "resources", "send-again", "resource:1") == ["1 sent again"]
        await until(lambda: sink.bodies[-2:] == [b'{"payload":"1"}', b'{"payload":"2"}'])
        assert await done(node, "resources", "dead-letters", "resource:1") == []
        assert await done(node, "resources", "clear-dead-letters", "resource:1") == ["0 removed"]
        for word in ("dead-letters", "send-again", "clear-dead-letters"):
            assert await refused(node, "resources", word, "resource:2") == "resource resource:2: not found"
        for word in ("send-again", "clear-dead-letters"):
            answer = await ctl(node, "resources", word, "resource:1", "-n", "9")
            assert answer.status == 1 and "resource:1 has no dead letter 9" in answer.out
    await sink.stop()


@pytest.mark.parametrize(
    "group, name, line",
    [
        (
            "rule-actions",
            "do_nothing",
            "action(name='do_nothing', app='taipan_rule_engine', for='$any', types=[], title ='Do Nothing (debug)', ",
        ),
        (
            "resource-types",
            "web_hook",
            "resource_type(name='web_hook', provider='taipan_rule_engine', title ='WebHook', description='",
        ),
    ],
)
async def test_types(group: str, name: str, line: str) -> None:
    async with managed_node() as node:
        (shown,) = await done(node, group, "show", name)
        assert shown.startswith(line) and shown.endswith("')")
        assert shown in await done(node, group, "list")
        assert len(await ctl_json(node, group, "list")) > 1
        noun = {"rule-actions": "action", "resource-types": "resource type"}[group]
        assert await refused(node, group, "show", "none") == f"{noun} none: not found"
