"""/actions and /resource_types, each row of the specification's tables Action and Resource type."""

from typing import Any

import pytest

from tests.support.api import Reply, managed_node

pytestmark = pytest.mark.asyncio

ACTIONS = ["inspect", "do_nothing", "republish", "data_to_webserver", "data_to_mqtt_broker", "data_to_opentsdb",
           "data_to_pgsql", "data_to_timescale", "data_to_timescaledb", "data_to_matrix", "data_to_mysql",
           "data_to_influxdb", "data_to_clickhouse", "data_to_tdengine", "data_to_redis", "data_to_rabbit",
           "data_to_kafka", "lookup_sub_to_pgsql", "lookup_sub_to_mysql", "lookup_sub_to_redis"]  # fmt: skip
TYPES = ["web_hook", "bridge_mqtt", "backend_opentsdb",
         "backend_pgsql", "backend_timescale", "timescaledb", "backend_matrix", "backend_mysql",
         "backend_influxdb_http", "backend_influxdb_http_v2", "backend_clickhouse", "backend_tdengine",
         "backend_redis_single", "backend_redis_sentinel", "backend_redis_cluster", "bridge_rabbit",
         "bridge_kafka", "kafka_consumer"]  # fmt: skip
DEFINITION = {"order", "type", "title", "description", "required", "default", "enum", "format", "range", "schema",
              "items", "input"}  # fmt: skip


def assert_words(words: Any) -> None:
    assert set(words) == {"zh", "en"} and all(isinstance(each, str) and each for each in words.values())


def assert_definitions(params: dict[str, Any]) -> None:
    for definition in params.values():
        assert {"type", "title", "description"} <= set(definition) <= DEFINITION
        assert_words(definition["title"])
        assert_words(definition["description"])


def assert_unknown(reply: Reply, about: str) -> None:
    assert (reply.status, reply.code) == (404, 102) and about in reply.json["message"], reply.text


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("field", ["name", "types", "title", "description", "params", "for", "app"])
async def test_every_field_of_an_action_type(field: str, name: str) -> None:
    wanted: dict[str, dict[str, Any]] = {
        "name": {each: each for each in ACTIONS},
        "types": {
            "data_to_webserver": ["web_hook"],
            "data_to_mqtt_broker": ["bridge_mqtt"],
            "data_to_opentsdb": ["backend_opentsdb"],
            "data_to_pgsql": ["backend_pgsql"],
            "data_to_timescale": ["backend_timescale", "timescaledb"],
            "data_to_timescaledb": ["backend_timescale", "timescaledb"],
            "data_to_matrix": ["backend_matrix"],
            "data_to_mysql": ["backend_mysql"],
            "data_to_clickhouse": ["backend_clickhouse"],
            "data_to_rabbit": ["bridge_rabbit"],
            "data_to_tdengine": ["backend_tdengine"],
            "data_to_redis": ["backend_redis_single", "backend_redis_sentinel", "backend_redis_cluster"],
            "data_to_kafka": ["bridge_kafka"],
            "lookup_sub_to_pgsql": ["backend_pgsql"],
            "lookup_sub_to_mysql": ["backend_mysql"],
            "lookup_sub_to_redis": ["backend_redis_single", "backend_redis_sentinel", "backend_redis_cluster"],
            "data_to_influxdb": ["backend_influxdb_http", "backend_influxdb_http_v2"],
        },
        "for": {
            **dict.fromkeys(ACTIONS, "$any"),
            "data_to_mqtt_broker": "message.publish",
            **{name: "client.connected" for name in ACTIONS if name.startswith("lookup_sub_to_")},
        },
        "app": dict.fromkeys(ACTIONS, "taipan_rule_engine"),
    }
    async with managed_node() as node:
        one = (await node.api.get(f"/actions/{name}")).data
        listed = {each["name"]: each for each in (await node.api.get("/actions")).data}
        assert list(listed) == ACTIONS and listed[name] == one
        if field in ("title", "description"):
            assert_words(one[field])
        elif field == "params":
            assert_definitions(one[field])
            assert ("$resource" in one["params"]) == bool(one["types"])
        else:
            assert one[field] == wanted[field].get(name, [])


@pytest.mark.parametrize(
    "param, default",
    [("details", False), ("summary", True), ("max_batch_size", 20), ("sync", False), ("sync_timeout", 0),
     ("$resource", None)],
)  # fmt: skip
async def test_every_parameter_of_the_time_series_action(param: str, default: Any) -> None:
    async with managed_node() as node:
        params = (await node.api.get("/actions/data_to_opentsdb")).data["params"]
        assert len(params) == 6 + len({"retry_for"})  # the latter is ours
        assert params[param].get("default") == default and params[param].get("required", False) is (default is None)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("field", ["name", "title", "description", "params", "provider"])
async def test_every_field_of_a_resource_type(field: str, name: str) -> None:
    async with managed_node() as node:
        one = (await node.api.get(f"/resource_types/{name}")).data
        listed = {each["name"]: each for each in (await node.api.get("/resource_types")).data}
        assert list(listed) == TYPES and listed[name] == one
        assert set(one) == {"name", "title", "description", "params", "provider"}
        if field in ("title", "description"):
            assert_words(one[field])
        elif field == "params":
            assert_definitions(one[field])
        else:
            assert one[field] == {"name": name, "provider": "taipan_rule_engine"}[field]


@pytest.mark.parametrize(
    "param, type, required, constraint, default",
    [
        ("url", "string", True, {"format": "url"}, None),
        ("method", "string", False, {"enum": ["PUT", "POST"]}, "POST"),
        ("headers", "object", False, {}, {}),
    ],
)
async def test_every_parameter_of_web_hook(
    param: str, type: str, required: bool, constraint: dict[str, Any], default: Any
) -> None:
    async with managed_node() as node:
        definition = (await node.api.get("/resource_types/web_hook")).data["params"][param]
        assert definition["type"] == type and definition.get("required", False) is required
        assert constraint.items() <= definition.items() and definition.get("default") == default


@pytest.mark.parametrize("path", ["/actions/nothing", "/resource_types/nothing", "/resource_types/nothing/resources"])
async def test_an_unknown_type(path: str) -> None:
    async with managed_node() as node:
        assert_unknown(await node.api.get(path), "nothing")
