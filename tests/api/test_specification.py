"""The specification's tables of endpoints, node records, envelope, pages, statuses and codes: a test for every row."""

import re
from collections.abc import Callable
from typing import Any, Final

import pytest

from taipan.management.http.envelope import status_of
from taipan.management.operations import refusal
from tests.support.api import ApiClient, ManagedNode, Reply, managed_node, segment

pytestmark = pytest.mark.asyncio

TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
USER: Final = {"login": "u1", "password": "p", "is_superuser": False}
RULE: Final = {"topic": "t/1", "login": "u1", "allow": True, "action": "pubsub"}
PUBLISH: Final = {"topic": "t/1", "clientid": "api", "payload": "x"}
SQL_RULE: Final = {"id": "rule:r", "rawsql": 'SELECT * FROM "t/#"', "actions": [{"name": "do_nothing", "params": {}}]}
RESOURCE: Final = {"id": "resource:w", "type": "web_hook", "config": {"url": "http://127.0.0.1:1"}}

OBJECT, ARRAY, PAGE, CODE, RAW = "an object", "an array", "a page", "the code only", "a file"

ENDPOINTS: Final[dict[str, tuple[str, Any]]] = {
    "GET /brokers": (ARRAY, None),
    "GET /brokers/{node}": (OBJECT, None),
    "GET /nodes": (ARRAY, None),
    "GET /nodes/{node}": (OBJECT, None),
    "GET /auth_user": (PAGE, None),
    "POST /auth_user": (OBJECT, [{**USER, "login": "another"}]),
    "PUT /auth_user/{login}": (CODE, {"password": "p2", "is_superuser": True}),
    "DELETE /auth_user/{login}": (CODE, None),
    "GET /clients": (PAGE, None),
    "GET /clients/{clientid}": (ARRAY, None),
    "DELETE /clients/{clientid}": (CODE, None),
    "GET /nodes/{node}/clients": (PAGE, None),
    "GET /nodes/{node}/clients/{clientid}": (ARRAY, None),
    "GET /clients/username/{username}": (ARRAY, None),
    "GET /nodes/{node}/clients/username/{username}": (ARRAY, None),
    "GET /clients/{clientid}/acl_cache": (ARRAY, None),
    "DELETE /clients/{clientid}/acl_cache": (CODE, None),
    "GET /subscriptions": (PAGE, None),
    "GET /subscriptions/{clientid}": (ARRAY, None),
    "GET /nodes/{node}/subscriptions": (PAGE, None),
    "GET /nodes/{node}/subscriptions/{clientid}": (ARRAY, None),
    "GET /routes": (PAGE, None),
    "GET /routes/{topic}": (ARRAY, None),
    "GET /broker_acl": (PAGE, None),
    "POST /broker_acl": (OBJECT, [{**RULE, "topic": "t/2"}]),
    "DELETE /broker_acl/{login}/{topic}": (CODE, None),
    "POST /mqtt/publish": (CODE, PUBLISH),
    "POST /mqtt/publish_batch": (ARRAY, [PUBLISH]),
    "POST /mqtt/subscribe": (CODE, {"topic": "t/2", "clientid": "c1"}),
    "POST /mqtt/subscribe_batch": (ARRAY, [{"topic": "t/2", "clientid": "c1"}]),
    "POST /mqtt/unsubscribe": (CODE, {"topic": "t/1", "clientid": "c1"}),
    "POST /mqtt/unsubscribe_batch": (ARRAY, [{"topic": "t/1", "clientid": "c1"}]),
    "GET /listeners": (ARRAY, None),
    "GET /nodes/{node}/listeners": (ARRAY, None),
    "GET /metrics": (ARRAY, None),
    "GET /nodes/{node}/metrics": (OBJECT, None),
    "GET /stats": (ARRAY, None),
    "GET /nodes/{node}/stats": (OBJECT, None),
    "GET /rules": (PAGE, None),
    "GET /rules/{rule_id}": (OBJECT, None),
    "POST /rules": (OBJECT, {**SQL_RULE, "id": "rule:another"}),
    "PUT /rules/{rule_id}": (OBJECT, {"enabled": False}),
    "DELETE /rules/{rule_id}": (CODE, None),
    "GET /actions": (ARRAY, None),
    "GET /actions/{action_name}": (OBJECT, None),
    "GET /resource_types": (ARRAY, None),
    "GET /resource_types/{resource_type_name}": (OBJECT, None),
    "GET /resources": (ARRAY, None),
    "GET /resources/{resource_id}": (OBJECT, None),
    "POST /resources": (OBJECT, {**RESOURCE, "id": "resource:another"}),
    "DELETE /resources/{resource_id}": (CODE, None),
    "POST /data/export": (OBJECT, None),
    "GET /data/file/{filename}": (RAW, None),
    "POST /data/import": (CODE, RAW),
}


async def furnish(node: ManagedNode) -> dict[str, str]:
    """A client, a user, a rule and whatever else the endpoints are about; the path variables that name them."""
    client = await node.client("c1", 4, username="u1")
    for path, body in (
        ("/auth_user", [USER]),
        ("/broker_acl", [RULE]),
        ("/rules", SQL_RULE),
        ("/resources", RESOURCE),
    ):
        assert (await node.api.post(path, body)).code == 0
    await client.subscribe("t/1")
    filename = (await node.api.post("/data/export")).data["filename"]
    return {
        "node": node.name,
        "clientid": "c1",
        "username": "u1",
        "login": "u1",
        "topic": "t/1",
        "rule_id": "rule:r",
        "action_name": "do_nothing",
        "resource_type_name": "web_hook",
        "resource_id": "resource:w",
        "filename": filename,
    }


async def ask(node: ManagedNode, endpoint: str, api: ApiClient | None = None) -> Reply:
    variables = await furnish(node)
    method, _, path = endpoint.partition(" ")
    path = re.sub(r"\{(\w+)\}", lambda found: segment(variables[found[1]]), path)
    body = ENDPOINTS[endpoint][1]
    if body == RAW:
        exported = await node.api.get("/data/file/" + variables["filename"])
        return await (api or node.api).ask(method, path, raw=exported.octets)
    return await (api or node.api).ask(method, path, body)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_endpoint(endpoint: str) -> None:
    async with managed_node() as node:
        reply = await ask(node, endpoint)
        form = ENDPOINTS[endpoint][0]
        assert reply.status == 200 and reply.headers["Content-Type"].startswith("application/json"), reply.text
        if form == RAW:
            assert isinstance(reply.json, dict) and reply.json["version"]
            return
        assert reply.code == 0
        if form == CODE:
            assert reply.json == {"code": 0}
        elif form == OBJECT:
            assert set(reply.json) == {"code", "data"} and isinstance(reply.data, dict) and reply.data
        else:
            assert set(reply.json) == {"code", "data"} | ({"meta"} if form == PAGE else set())
            assert isinstance(reply.data, list) and reply.data and all(isinstance(each, dict) for each in reply.data)


@pytest.mark.parametrize("prefix", ["/api", "/api/v4"])
@pytest.mark.parametrize("endpoint", ["GET /clients", "POST /data/export"])
async def test_base_path(prefix: str, endpoint: str) -> None:
    async with managed_node() as node:
        api = ApiClient(node.management.url, prefix)
        assert (await ask(node, endpoint, api)).code == 0
        await api.close()


BROKER: Final[dict[str, Callable[[Any, ManagedNode], bool]]] = {
    "datetime": lambda value, node: bool(TIME.fullmatch(value)),
    "node": lambda value, node: value == node.name and "@" in value,
    "node_status": lambda value, node: value == "Running",
    "otp_release": lambda value, node: value.startswith("CPython/"),
    "sysdescr": lambda value, node: "Taipan" in value,
    "uptime": lambda value, node: bool(re.fullmatch(r"(\d+ days, )?(\d+ hours, )?(\d+ minutes, )?\d+ seconds", value)),
    "version": lambda value, node: value == node.server.version,
}


def _is_size(value: Any) -> bool:
    return value > 0 if type(value) is int else bool(re.fullmatch(r"\d+\.\d\d[KMG]", value))


LOAD: Final = re.compile(r"\d+\.\d\d")
NODE: Final[dict[str, Callable[[Any, ManagedNode], bool]]] = {
    "connections": lambda value, node: type(value) is int and value == 1,
    "load1": lambda value, node: bool(LOAD.fullmatch(value)),
    "load5": lambda value, node: bool(LOAD.fullmatch(value)),
    "load15": lambda value, node: bool(LOAD.fullmatch(value)),
    "max_fds": lambda value, node: type(value) is int and value > 0,
    "memory_total": lambda value, node: _is_size(value),
    "memory_used": lambda value, node: _is_size(value),
    "node": BROKER["node"],
    "node_status": BROKER["node_status"],
    "otp_release": BROKER["otp_release"],
    "process_available": lambda value, node: type(value) is int and value > 0,
    "process_used": lambda value, node: type(value) is int and value > 0,
    "uptime": BROKER["uptime"],
    "version": BROKER["version"],
}


@pytest.mark.parametrize("field", BROKER)
async def test_field_of_a_broker(field: str) -> None:
    async with managed_node() as node:
        (listed,) = (await node.api.get("/brokers")).data
        one = (await node.api.get(f"/brokers/{segment(node.name)}")).data
        assert set(listed) == set(one) == set(BROKER)
        assert BROKER[field](listed[field], node) and BROKER[field](one[field], node)


@pytest.mark.parametrize("field", NODE)
async def test_field_of_a_node(field: str) -> None:
    async with managed_node() as node:
        await node.client("c1")
        (listed,) = (await node.api.get("/nodes")).data
        one = (await node.api.get(f"/nodes/{segment(node.name)}")).data
        assert set(listed) == set(one) == {*NODE, "live_connections"}
        assert NODE[field](listed[field], node) and NODE[field](one[field], node)
        if field.startswith("memory"):
            assert isinstance(listed[field], str) and isinstance(one[field], int)


@pytest.mark.parametrize("member", ["code", "data", "meta"])
async def test_envelope(member: str) -> None:
    async with managed_node() as node:
        body = (await node.api.get("/clients")).json
        assert type(body[member]) is {"code": int, "data": list, "meta": dict}[member]
        # Without meaning it is not there: no page, nothing to tell.
        assert (member in (await node.api.get("/brokers")).json) is (member != "meta")
        assert (member in (await node.api.post("/mqtt/publish", PUBLISH)).json) is (member == "code")


@pytest.mark.parametrize("parameter", ["_page", "_limit"])
async def test_page_parameter(parameter: str) -> None:
    """Required by none; a page of the default's length else."""
    async with managed_node({"max_row_limit": 3}) as node:
        for number in range(4):
            await node.client(f"c{number}")
        first = await node.api.get("/clients")
        assert len(first.data) == 3 and first.meta == {"page": 1, "limit": 3, "count": 4, "hasnext": True}
        if parameter == "_page":
            second = await node.api.get("/clients", _page=2)
            assert [each["clientid"] for each in second.data] == ["c3"] and second.meta["page"] == 2
        else:
            assert len((await node.api.get("/clients", _limit=2)).data) == 2
            # Never more than the setting.
            assert (await node.api.get("/clients", _limit=1000)).meta["limit"] == 3


@pytest.mark.parametrize(
    "field, kind, wanted, filtered",
    [("page", int, 1, 1), ("limit", int, 10_000, 10_000), ("count", int, 2, -1), ("hasnext", bool, False, False)],
    ids=["page", "limit", "count", "hasnext"],
)
async def test_meta(field: str, kind: type, wanted: Any, filtered: Any) -> None:
    async with managed_node() as node:
        await node.client("c1")
        await node.client("c2")
        every = (await node.api.get("/clients")).meta
        assert set(every) == {"page", "limit", "count", "hasnext"}
        assert type(every[field]) is kind and every[field] == wanted
        for query in ({"proto_ver": 5}, {"_like_clientid": "c"}):
            assert (await node.api.get("/clients", **query)).meta[field] == filtered


@pytest.mark.parametrize("status", [200, 400, 401, 404, 500])
async def test_status(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_node() as node:
        if status == 500:
            # Nothing that is asked leads there: what does is a bug, or a store that cannot be written.
            assert status_of(refusal.RPC_ERROR) == 500
            return
        paths = {200: "/brokers", 400: "/clients?_page=x", 401: "/brokers", 404: "/nodes/nobody@nowhere"}
        api = ApiClient(node.management.url, app=None) if status == 401 else node.api
        reply = await api.ask("GET", paths[status])
        assert reply.status == status and type(reply.code) is int
        assert (reply.code == 0) is (status == 200)
        await api.close()


async def _already_there(node: ManagedNode) -> Reply:
    await node.api.post("/auth_username", {"username": "u1", "password": "p"})
    return await node.api.post("/auth_username", {"username": "u1", "password": "p"})


async def _store_in_trouble(node: ManagedNode) -> Reply:
    assert node.server.broker.durability is not None
    node.server.broker.durability.commit.trouble = "the disk is full"
    reply = await node.api.post("/mqtt/publish", {**PUBLISH, "retain": True})
    node.server.broker.durability.commit.trouble = None
    return reply


async def _as(node: ManagedNode, app: tuple[str, str] | None) -> Reply:
    api = ApiClient(node.management.url, app=app)
    reply = await api.get("/brokers")
    await api.close()
    return reply


CODES: Final[dict[int, Callable[[ManagedNode], Any]]] = {
    0: lambda node: node.api.get("/brokers"),
    101: _store_in_trouble,
    102: lambda node: node.api.get("/no/such/path"),
    103: lambda node: _as(node, ("tester", "wrong")),
    104: lambda node: _as(node, ("", "")),
    105: lambda node: node.api.delete("/auth_user/nobody"),
    107: lambda node: node.api.post("/mqtt/publish", {"topic": "t"}),
    108: lambda node: node.api.post("/mqtt/publish", {**PUBLISH, "qos": 3}),
    109: lambda node: node.api.ask("POST", "/mqtt/publish", raw=b"{"),
    112: lambda node: node.api.delete("/clients/nobody"),
    113: _already_there,
    115: lambda node: node.api.post("/mqtt/publish", {**PUBLISH, "topic": "t/#"}),
}


@pytest.mark.parametrize("code", CODES)
async def test_code(code: int) -> None:
    async with managed_node(durability={"level": "disk"}) as node:
        reply = await CODES[code](node)
        assert reply.code == code and reply.status == (200 if code == 0 else status_of(code))
        assert code == 0 or reply.json["message"]


@pytest.mark.parametrize(
    "name, code",
    [("ADMIN_STAYS", 106), ("PLUGIN_ENABLED", 110), ("PLUGIN_DISABLED", 111), ("OLD_PASSWORD_WRONG", 114)],
    ids=["106", "110", "111", "114"],
)
async def test_code_of_what_is_not_here(name: str, code: int) -> None:
    """There are no plugins and no dashboard users: the number is kept for them, and has the status of a refusal."""
    assert getattr(refusal, name) == code and status_of(code) == 400


async def test_after_a_kick_the_client_is_gone() -> None:
    async with managed_node() as node:
        client = await node.client("c1", expiry=1000)
        assert (await node.api.delete("/clients/c1")).json == {"code": 0}
        await client.expect_disconnect(0x98)
        await client.expect_closed()
        assert (await node.api.get("/clients/c1")).data == [] and (await node.api.get("/subscriptions/c1")).data == []


async def test_after_cleaning_the_acl_cache_is_empty() -> None:
    async with managed_node() as node:
        client = await node.client("c1")
        await client.subscribe("t")
        (entry,) = (await node.api.get("/clients/c1/acl_cache")).data
        assert entry["access"] == "subscribe" and entry["result"] == "allow"
        assert (await node.api.delete("/clients/c1/acl_cache")).json == {"code": 0}
        assert (await node.api.get("/clients/c1/acl_cache")).data == []


@pytest.mark.parametrize("field", ["access", "topic", "result", "updated_time"])
async def test_field_of_an_acl_cache_entry(field: str) -> None:
    async with managed_node() as node:
        client = await node.client("c1")
        await client.publish("t/1", b"x")
        (entry,) = (await node.api.get("/clients/c1/acl_cache")).data
        wanted = {"access": "publish", "topic": "t/1", "result": "allow"}
        assert set(entry) == {*wanted, "updated_time"}
        if field == "updated_time":
            assert type(entry[field]) is int and abs(entry[field] / 1000 - node.clock.now()) < 60
        else:
            assert entry[field] == wanted[field]


@pytest.mark.parametrize("field", ["size", "filename", "created_at"])
async def test_field_of_an_export(field: str) -> None:
    async with managed_node() as node:
        record = (await node.api.post("/data/export")).data
        octets = (await node.api.get("/data/file/" + record["filename"])).octets
        if field == "size":
            assert record["size"] == len(octets)
        elif field == "filename":
            assert re.fullmatch(r"broker-export-\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d\.json", record["filename"])
        else:
            assert TIME.fullmatch(record["created_at"])


@pytest.mark.parametrize("key", ["topic", "topics", "clientid", "payload", "encoding", "qos", "retain"])
async def test_key_of_a_publish(key: str) -> None:
    """What each says, and what is so where it is not said."""
    async with managed_node() as node:
        peer = await node.client("c1", 5)
        await peer.subscribe("t/#", qos=2)
        body: dict[str, Any] = {"topic": "t/1", "clientid": "api", "payload": "aGk="}
        if key in ("clientid", "payload"):
            del body[key]
            assert (await node.api.post("/mqtt/publish", body)).code == 107
            return
        if key == "topics":
            del body["topic"]
            assert (await node.api.post("/mqtt/publish", body)).code == 107
            body["topics"] = "t/1,t/2"
        said: dict[str, Any] = {"encoding": "base64", "qos": 1, "retain": True}
        if key in said:
            body[key] = said[key]
        assert (await node.api.post("/mqtt/publish", body)).json == {"code": 0}
        message = await peer.expect_publish("t/1")
        assert bytes(message.payload) == (b"hi" if key == "encoding" else b"aGk=")
        assert message.qos == (1 if key == "qos" else 0)
        kept = [each["topic"] for each in (await node.api.get("/retained")).data]
        assert kept == (["t/1"] if key == "retain" else [])
        if key == "topics":
            await peer.expect_publish("t/2")


@pytest.mark.parametrize("key", ["topic", "topics", "clientid", "qos"])
async def test_key_of_a_subscribe(key: str) -> None:
    async with managed_node() as node:
        await node.client("c1")
        body: dict[str, Any] = {"topic": "t/1", "clientid": "c1"}
        if key == "clientid":
            assert (await node.api.post("/mqtt/subscribe", {"topic": "t"})).code == 107
        if key == "topics":
            body = {"topics": "t/1,t/2", "clientid": "c1"}
            assert (await node.api.post("/mqtt/subscribe", {"clientid": "c1"})).code == 107
        if key == "qos":
            body["qos"] = 2
        assert (await node.api.post("/mqtt/subscribe", body)).json == {"code": 0}
        got = {each["topic"]: each["qos"] for each in (await node.api.get("/subscriptions/c1")).data}
        assert got == {"t/1": 2 if key == "qos" else 0, **({"t/2": 0} if key == "topics" else {})}


@pytest.mark.parametrize("key", ["topic", "clientid"])
async def test_key_of_an_unsubscribe(key: str) -> None:
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("t/1", "t/2")
        body = {"topic": "t/1", "clientid": "c1"}
        assert (await node.api.post("/mqtt/unsubscribe", {k: v for k, v in body.items() if k != key})).code == 107
        assert (await node.api.post("/mqtt/unsubscribe", body)).json == {"code": 0}
        assert [each["topic"] for each in (await node.api.get("/subscriptions/c1")).data] == ["t/2"]
