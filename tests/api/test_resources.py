"""/resources and /resource_status, each row of the specification's table Resource."""

import re
from typing import Any

import pytest

from tests.support.api import ManagedNode, assert_refused, managed_node, segment
from tests.support.http_sink import HttpSink
from tests.support.node import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

QUICK = {"liveness_interval": 0.05, "liveness_timeout": 60.0, "retry_backoff": 0.01, "retry_backoff_max": 0.05}


async def new_hook(node: ManagedNode, url: str, **more: Any) -> dict[str, Any]:
    reply = await node.api.post("/resources", {"type": "web_hook", "config": {"url": url}, **more})
    record: dict[str, Any] = reply.data
    return record


async def user_of(node: ManagedNode, resource_id: str, **more: Any) -> str:
    """A rule that uses a resource; its id."""
    action = {"name": "data_to_webserver", "params": {"$resource": resource_id}}
    reply = await node.api.post("/rules", {"rawsql": 'SELECT * FROM "t"', "actions": [action], **more})
    return str(reply.data["id"])


async def alive(node: ManagedNode, resource_id: str) -> bool:
    (status,) = (await node.api.get(f"/resources/{resource_id}")).data["status"]
    assert status["node"] == node.name
    told = (await node.api.get(f"/resource_status/{resource_id}")).data
    assert told == {"is_alive": status["is_alive"]}
    (listed,) = [each for each in (await node.api.get("/resources")).data if each["id"] == resource_id]
    assert listed["status"] is status["is_alive"]
    return bool(status["is_alive"])


async def until_alive(node: ManagedNode, resource_id: str, wanted: bool) -> None:
    resource = node.engine.resources.running(resource_id)
    await until(lambda: resource.alive is wanted)
    assert await alive(node, resource_id) is wanted


@pytest.mark.parametrize(
    "field, value",
    [
        ("id", "resource:mine"),
        ("type", "web_hook"),
        ("config", None),
        ("description", "where rows go"),
        ("status", None),
    ],
)
async def test_every_field(sink: HttpSink, field: str, value: Any) -> None:
    async with managed_node(ruleengine=QUICK) as node:
        config = {"url": sink.url, "method": "PUT", "headers": {"x-k": "v"}}
        body = {"id": "resource:mine", "type": "web_hook", "config": config, "description": "where rows go"}
        made = (await node.api.post("/resources", body)).data
        one = (await node.api.get("/resources/resource:mine")).data
        (listed,) = (await node.api.get("/resources")).data
        (of_type,) = (await node.api.get("/resource_types/web_hook/resources")).data
        if field == "status":
            assert "status" not in made
            assert one["status"][0].items() >= {"node": node.name, "is_alive": True}.items()
            assert listed["status"] is True and of_type["status"] is True
        elif field == "config":
            # What was given, and the defaults of the rest.
            assert one["config"].items() >= {**config, "pool_size": 8, "request_timeout": "5s"}.items()
            assert made["config"] == one["config"] == listed["config"]
        else:
            assert made[field] == one[field] == listed[field] == of_type[field] == value
        assert (await node.api.get("/resource_types/bridge_mqtt/resources")).data == []


async def test_generated_ids_and_defaults(sink: HttpSink) -> None:
    async with managed_node(ruleengine=QUICK) as node:
        made = await new_hook(node, sink.url)
        assert re.fullmatch(r"resource:[0-9a-f]{8}", made["id"]) and made["description"] == ""
        assert (made["config"]["method"], made["config"]["headers"]) == ("POST", {})


@pytest.mark.parametrize("field", ["node", "is_alive"])
async def test_every_field_of_the_status(field: str) -> None:
    """States: it is created although nobody answers, lives when somebody does, and so on."""
    sink = HttpSink()
    async with managed_node(ruleengine=QUICK) as node:
        made = await new_hook(node, sink.url)
        if field == "node":
            assert (await node.api.get(f"/resources/{made['id']}")).data["status"][0]["node"] == node.name
            return
        assert await alive(node, made["id"]) is False
        name = f"resource/web_hook/{made['id']}/down"
        alarms = [each["name"] for each in (await node.api.get("/alarms/activated")).data[0]["alarms"]]
        assert name in alarms
        await sink.start()
        await until_alive(node, made["id"], True)
        await sink.stop()
        await until_alive(node, made["id"], False)


async def test_a_resource_is_started_again_on_demand() -> None:
    sink = HttpSink()
    async with managed_node(ruleengine={"liveness_interval": 600.0, "liveness_timeout": 60.0}) as node:
        made = await new_hook(node, sink.url)
        assert_refused(await node.api.post(f"/resources/{made['id']}"), 400, 108, made["id"])
        await sink.start()
        assert (await node.api.post(f"/resources/{made['id']}")).json == {"code": 0}
        await sink.stop()


@pytest.mark.parametrize(
    "method, path, body",
    [
        ("GET", "/resources/resource:none", None),
        ("PUT", "/resources/resource:none", {"description": "x"}),
        ("POST", "/resources/resource:none", None),
        ("DELETE", "/resources/resource:none", None),
        ("GET", "/resource_status/resource:none", None),
    ],
)
async def test_an_unknown_resource(method: str, path: str, body: Any) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.ask(method, path, body), 404, 102, "resource:none")


@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize(
    "body, status, code, about",
    [
        ({"config": {}}, 400, 107, "type"),
        ({"type": "web_hook"}, 400, 107, "config"),
        ({"type": "web_hook", "config": {}}, 400, 107, "url"),
        ({"type": 5, "config": {}}, 400, 108, "type"),
        ({"type": "web_hook", "config": []}, 400, 107, "url"),
        ({"type": "web_hook", "config": [1]}, 400, 108, "config"),
        ({"type": "web_hook", "config": {"url": "http://h", "cacertfile": {"path": "x"}}}, 400, 108, "cacertfile"),
        ({"type": "web_hook", "config": {"url": "http://h", "keyfile": {"file": 5}}}, 400, 108, "keyfile"),
        ({"type": "web_hook", "config": {"url": "https://h", "certfile": {"file": "x"}}}, 400, 108, "keyfile"),
        ({"type": "no_such", "config": {}}, 404, 102, "no_such"),
        ({"type": "backend_redis", "config": {}}, 404, 102, "backend_redis; did you mean backend_redis_single?"),
        ({"type": "web_hook", "config": {"url": "not a url"}}, 400, 108, "url"),
        ({"type": "web_hook", "config": {"url": "http://h", "method": "PATCH"}}, 400, 108, "method"),
        ({"type": "web_hook", "config": {"url": "http://h", "headers": "x"}}, 400, 108, "headers"),
        ({"type": "web_hook", "config": {"url": "http://h", "pool_size": 0}}, 400, 108, "pool_size"),
        ({"type": "web_hook", "config": {"url": "http://h", "headers": {"a": 10**30}}}, 400, 108, "64 bits"),
        ({"type": "bridge_mqtt", "config": {"address": "h:1883", "proto_ver": "mqttv6"}}, 400, 108, "proto_ver"),
        ({"type": "web_hook", "config": {"url": "http://h"}, "id": ""}, 400, 108, "id"),
        ({"type": "web_hook", "config": {"url": "http://h"}, "description": 1}, 400, 108, "description"),
        ([], 400, 108, ""),
    ],
)
async def test_a_wrong_resource_is_refused(body: Any, test: bool, status: int, code: int, about: str) -> None:
    async with managed_node() as node:
        if test and isinstance(body, dict):
            body = {**body, "test": True}
        assert_refused(await node.api.post("/resources", body), status, code, about)
        assert (await node.api.get("/resources")).data == []


async def test_an_id_that_is_taken(sink: HttpSink) -> None:
    async with managed_node(ruleengine=QUICK) as node:
        await new_hook(node, sink.url, id="resource:1")
        body = {"type": "web_hook", "config": {"url": sink.url}, "id": "resource:1"}
        assert_refused(await node.api.post("/resources", body), 400, 113, "resource:1")


@pytest.mark.parametrize("where", ["query", "body"])
async def test_a_resource_is_tried_and_not_kept(sink: HttpSink, where: str) -> None:
    async with managed_node(ruleengine=QUICK) as node:
        body: dict[str, Any] = {"type": "web_hook", "config": {"url": sink.url}}
        query = {"test": "true"} if where == "query" else {}
        if where == "body":
            body["test"] = True
        assert (await node.api.post("/resources", body, **query)).json == {"code": 0}
        body["config"] = {"url": f"http://127.0.0.1:{free_port()}"}
        assert_refused(await node.api.post("/resources", body, **query), 400, 108, "cannot be reached")
        assert (await node.api.get("/resources")).data == []


async def test_addresses_that_no_resource_may_reach() -> None:
    async with managed_node(ruleengine=QUICK) as node:
        body = {"type": "web_hook", "config": {"url": "http://169.254.169.254/latest"}, "test": True}
        assert_refused(await node.api.post("/resources", body), 400, 108, "refused_networks")


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..example", ".example"])
async def test_what_is_no_host_name_is_down_and_no_error_of_the_node(host: str) -> None:
    """IDNA refuses it, with an error that is no OSError."""
    async with managed_node(ruleengine=QUICK) as node:
        for kind, config in (("web_hook", {"url": f"http://{host}/x"}), ("bridge_mqtt", {"address": f"{host}:1883"})):
            reply = await node.api.post("/resources", {"type": kind, "config": config})
            assert reply.status == 200
            (status,) = (await node.api.get(f"/resources/{reply.data['id']}")).data["status"]
            assert status["is_alive"] is False and "is not a hostname" in status["reason"]


# PUT and DELETE


async def test_description_and_configuration_change(sink: HttpSink) -> None:
    async with managed_node(ruleengine=QUICK) as node:
        made = await new_hook(node, sink.url)
        path = f"/resources/{segment(made['id'])}"
        assert (await node.api.put(path, {"description": "renamed"})).json == {"code": 0}
        changed = {"url": sink.url + "/else", "method": "PUT"}
        assert (await node.api.put(path, {"config": changed})).json == {"code": 0}
        now = (await node.api.get(path)).data
        assert now["description"] == "renamed" and now["config"].items() >= changed.items()
        assert_refused(await node.api.put(path, {"config": {"url": "x"}}), 400, 108, "url")
        unreachable = {"url": f"http://127.0.0.1:{free_port()}"}
        assert_refused(await node.api.put(path, {"config": unreachable}), 400, 108, "cannot be reached")
        assert_refused(await node.api.put(path, {"config": 5}), 400, 108, "config")
        assert (await node.api.get(path)).data["config"] == now["config"]


async def test_a_resource_in_use_stays(sink: HttpSink) -> None:
    async with managed_node(ruleengine=QUICK) as node:
        made = await new_hook(node, sink.url)
        path = f"/resources/{made['id']}"
        rule_id = await user_of(node, made["id"])
        fallback = {"name": "data_to_webserver", "params": {"$resource": made["id"]}}
        body = {"rawsql": 'SELECT * FROM "t"', "actions": [{"name": "inspect", "params": {}, "fallbacks": [fallback]}]}
        other = (await node.api.post("/rules", body)).data["id"]
        for reply in (await node.api.delete(path), await node.api.put(path, {"config": {"url": sink.url}})):
            assert_refused(reply, 400, 108, rule_id)
            assert other in reply.json["message"]
        # Its description is nobody's business but its own.
        assert (await node.api.put(path, {"description": "x"})).code == 0
        for each in (rule_id, other):
            await node.api.delete(f"/rules/{each}")
        assert (await node.api.delete(path)).json == {"code": 0}
        assert_refused(await node.api.get(path), 404, 102)
        assert (await node.api.get("/resources")).data == []


async def test_a_parameter_that_a_resource_does_not_have_is_named_in_the_answer(
    sink: HttpSink, caplog: pytest.LogCaptureFixture
) -> None:
    async with managed_node() as node:
        config = {"url": sink.url, "conect_timeout": "1s"}
        made = (await node.api.post("/resources", {"type": "web_hook", "config": config})).data
        said = "conect_timeout: web_hook has no such parameter; the value has no effect"
        assert made["warnings"] == [said]
        path = f"/resources/{segment(made['id'])}"
        assert "warnings" not in (await node.api.get(path)).data
        caplog.clear()
        assert (await node.api.put(path, {"config": {"url": sink.url, "metod": "PUT"}})).code == 0
        assert any("resource_doubtful" in line and "metod: web_hook" in line for line in caplog.messages)


async def test_a_disabled_rule_lets_its_resource_change(sink: HttpSink) -> None:
    async with managed_node(ruleengine=QUICK) as node:
        made = await new_hook(node, sink.url)
        rule_id = await user_of(node, made["id"], enabled=False)
        assert (await node.api.put(f"/resources/{made['id']}", {"config": {"url": sink.url + "/b"}})).code == 0
        assert_refused(await node.api.delete(f"/resources/{made['id']}"), 400, 108, rule_id)


# Secrets


async def test_a_password_is_masked_in_every_answer() -> None:
    async with managed_node(ruleengine=QUICK) as node:
        config = {"address": node.settings.listeners[0].bind, "username": "ann", "password": "pass word"}
        replies = [await node.api.post("/resources", {"id": "resource:1", "type": "bridge_mqtt", "config": config})]
        assert (await node.api.put("/resources/resource:1", {"description": "x"})).code == 0
        masked = replies[0].data["config"]
        assert masked["password"] == "******" and masked["username"] == "ann"
        # What was read can be written back: the mask is no password.
        assert (await node.api.put("/resources/resource:1", {"config": masked})).code == 0
        for path in ("/resources", "/resources/resource:1", "/resource_types/bridge_mqtt/resources"):
            replies.append(await node.api.get(path))
        assert all("pass word" not in reply.text for reply in replies)
        assert [each.config["password"] for each in node.engine.resources.stored()] == ["pass word"]


# Durability


async def test_resources_are_there_after_a_restart(sink: HttpSink, tmp_path: Any) -> None:
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(ruleengine=QUICK, **config) as node:
        kept = await new_hook(node, sink.url, description="kept")
        gone = await new_hook(node, sink.url)
        await node.api.delete(f"/resources/{gone['id']}")
        rule_id = await user_of(node, kept["id"])
    async with managed_node(ruleengine=QUICK, **config) as node:
        (listed,) = (await node.api.get("/resources")).data
        del listed["status"]
        assert listed == kept
        await until_alive(node, kept["id"], True)
        assert (await node.api.get(f"/rules/{rule_id}")).data["enabled"] is True
        await (await node.client("c1", 5)).publish("t", b"after", 1)
        await until(lambda: len(sink.requests) == 1)


async def test_the_gauge(sink: HttpSink) -> None:
    async with managed_node(ruleengine=QUICK) as node:
        made = await new_hook(node, sink.url)
        counts = []
        for _ in range(2):
            (row,) = (await node.api.get("/stats")).data
            counts.append((row["stats"]["resources.count"], row["stats"]["resources.max"]))
            await node.api.delete(f"/resources/{made['id']}")
        assert counts == [(1, 1), (0, 1)]
