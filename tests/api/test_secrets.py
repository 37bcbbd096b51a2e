"""Secrets of resources and actions: no answer shows them, no round trip loses them, an export has them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.observability.masking import MASK
from tests.support.api import ManagedNode, managed_node
from tests.support.ctl import done
from tests.support.node import free_port

pytestmark = pytest.mark.asyncio

KEEP = {"connect_timeout": "1s", "request_timeout": "1s"}


@pytest_asyncio.fixture
async def node() -> AsyncIterator[ManagedNode]:
    async with managed_node() as node:
        yield node


def hook(**config: Any) -> dict[str, Any]:
    """A web hook; nobody answers there."""
    return {"url": f"http://127.0.0.1:{free_port()}/a?token=abcdef", **KEEP, **config}


HEADERS = {"Authorization": "Bearer s3cr3t", "X-Api-Key": "k3y", "X-Trace": "shown"}
SHOWN = {"Authorization": MASK, "X-Api-Key": MASK, "X-Trace": "shown"}
SECRETS = ("abcdef", "s3cr3t", "k3y")


async def make(node: ManagedNode) -> dict[str, Any]:
    body = {"type": "web_hook", "id": "hook", "config": hook(headers=HEADERS)}
    created: dict[str, Any] = (await node.api.post("/resources", body)).data
    return created


async def make_rule(node: ManagedNode) -> dict[str, Any]:
    hook = {"$resource": "hook"}
    fallback = {"name": "data_to_webserver", "params": {**hook, "headers": {"Cookie": "s3cr3t"}}}
    params = {**hook, "headers": HEADERS, "path": "/x?token=abcdef"}
    filled_in = {**hook, "headers": {"Authorization": "Basic ${payload.t}"}}
    actions = [
        {"name": "data_to_webserver", "params": params, "fallbacks": [fallback]},
        {"name": "data_to_webserver", "params": filled_in},
    ]
    made: dict[str, Any] = (
        await node.api.post("/rules", {"id": "rule", "rawsql": 'SELECT * FROM "a"', "actions": actions})
    ).data
    return made


def stored_actions(node: ManagedNode) -> Any:
    return node.engine.rules.get("rule").stored.actions


def plain(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"name": each["name"], "params": each["params"], "fallbacks": plain(each.get("fallbacks", []))}
        for each in actions
    ]


async def test_no_answer_shows_them(node: ManagedNode) -> None:
    created = await make(node)
    assert created["config"]["headers"] == SHOWN
    await make_rule(node)
    for path in ("/resources", "/resources/hook", "/rules", "/rules/rule", "/rules/rule/trace", "/alarms"):
        answer = (await node.api.get(path)).text
        assert not [secret for secret in SECRETS if secret in answer], path
    config = (await node.api.get("/resources/hook")).data["config"]
    assert config["url"].startswith("http://127.0.0.1:") and config["url"].endswith(f"/a?token={MASK}")
    (first, second) = (await node.api.get("/rules/rule")).data["actions"]
    assert first["params"]["headers"] == SHOWN and first["params"]["path"] == f"/x?token={MASK}"
    assert first["fallbacks"][0]["params"]["headers"] == {"Cookie": MASK}
    assert second["params"]["headers"] == {"Authorization": "Basic ${payload.t}"}
    for command in (("resources", "list"), ("resources", "show", "hook"), ("rules", "list"), ("rules", "show", "rule")):
        said = await done(node, *command)
        assert "hook" in str(said) or "rule" in str(said)
        assert not [secret for secret in SECRETS if secret in str(said)], command


async def test_an_export_has_them(node: ManagedNode) -> None:
    await make(node)
    await make_rule(node)
    name = (await node.api.post("/data/export")).data["filename"]
    text = (await node.api.get(f"/data/file/{name}")).text
    assert all(secret in text for secret in SECRETS) and MASK not in text


async def test_a_round_trip_of_a_rule_keeps_them(node: ManagedNode) -> None:
    await make(node)
    record = await make_rule(node)
    before = stored_actions(node)
    body = {"description": "as it was", "actions": plain(record["actions"])}
    assert (await node.api.put("/rules/rule", body)).code == 0
    assert stored_actions(node) is before
    # Also where actions change places, and where something beside them changes.
    body["actions"].reverse()
    assert (await node.api.put("/rules/rule", body)).code == 0
    second, first = stored_actions(node)
    assert (first.params["headers"], first.params["path"]) == (HEADERS, "/x?token=abcdef")
    assert first.fallbacks[0].params["headers"] == {"Cookie": "s3cr3t"}
    assert second.params["headers"] == {"Authorization": "Basic ${payload.t}"}
    body["actions"][1]["params"]["body"] = "new"
    assert (await node.api.put("/rules/rule", body)).code == 0
    _, first = stored_actions(node)
    assert (first.params["headers"], first.params["body"]) == (HEADERS, "new")
    assert first.fallbacks[0].params["headers"] == {"Cookie": "s3cr3t"}


async def test_a_mask_that_stands_for_nothing_is_refused(node: ManagedNode) -> None:
    await make(node)
    config = hook(headers={"Authorization": MASK})
    reply = await node.api.post("/resources", {"type": "web_hook", "config": config})
    assert (reply.status, reply.code) == (400, 108)
    assert reply.json["message"] == f"headers.Authorization has {MASK}, which masks a secret: give the secret"
    record = await make_rule(node)
    actions = plain(record["actions"])
    actions[0]["params"]["headers"]["X-Token"] = MASK
    reply = await node.api.put("/rules/rule", {"actions": actions})
    assert (reply.status, reply.code) == (400, 108) and "headers.X-Token" in reply.json["message"]
    reply = await node.api.post("/rules", {"rawsql": 'SELECT * FROM "a"', "actions": actions})
    assert (reply.status, reply.code) == (400, 108)


async def test_a_round_trip_of_a_resource_keeps_them() -> None:
    async with answering() as url, managed_node() as node:
        config = {"url": url + "/a?token=abcdef", "headers": HEADERS, **KEEP}
        await node.api.post("/resources", {"type": "web_hook", "id": "hook", "config": config})
        shown = (await node.api.get("/resources/hook")).data["config"]
        assert not [secret for secret in SECRETS if secret in json.dumps(shown)]
        shown["request_timeout"] = "2s"
        assert (await node.api.put("/resources/hook", {"config": shown})).code == 0
        stored = node.engine.resources.get("hook").stored.config
        assert (stored["url"], stored["headers"], stored["request_timeout"]) == (config["url"], HEADERS, "2s")
        # A form tests what it is about to save.
        tested = {"type": "web_hook", "id": "hook", "config": shown, "test": True}
        assert (await node.api.post("/resources", tested)).code == 0
        del tested["id"]
        assert (await node.api.post("/resources", tested)).code == 108
        # The secret does not follow to another host.
        shown["url"] = shown["url"].replace("127.0.0.1", "localhost")
        reply = await node.api.put("/resources/hook", {"config": shown})
        assert (reply.code, "url has ******" in reply.json["message"]) == (108, True)


@asynccontextmanager
async def answering() -> AsyncIterator[str]:
    """The URL of a server that takes connections."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_user_properties_are_data_whatever_they_are_called(node: ManagedNode) -> None:
    """A round trip changes nothing; what else has such a name is masked by it still."""
    properties = {"key": "${topic}", "secret": "none", "token": "t", "plain": MASK}
    params = {"target_topic": "out", "user_properties": properties, "target_qos": 0, "password": "s3cr3t"}
    body = {"id": "data", "rawsql": 'SELECT * FROM "a"', "actions": [{"name": "republish", "params": params}]}
    made = (await node.api.post("/rules", body)).data
    shown = made["actions"][0]["params"]
    assert shown["user_properties"] == properties and shown["password"] == MASK
    reply = await node.api.put("/rules/data", {"actions": made["actions"]})
    assert reply.code == 0, reply.text
    stored = node.engine.rules.get("data").stored.actions[0].params
    assert stored["user_properties"] == properties and stored["password"] == "s3cr3t"
