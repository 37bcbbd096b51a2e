"""Writes ``docs/rule-parameters.md``: every parameter of every action and resource, from its declaration.

``python -m tests.rules.reference``. The examples stand here; a test creates each of them on a node.
"""

import json
from pathlib import Path
from typing import Any, Final

from taipan.ruleengine.params import Param, number
from taipan.ruleengine.types.builtin import ACTION_TYPES, RESOURCE_TYPES

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "rule-parameters.md"


def _database(server: str, user: str) -> dict[str, Any]:
    return {
        "server": server,
        "database": "mqtt",
        user: "taipan",
        "password": "6d0a7c",
        "pool_size": 8,
        "auto_reconnect": True,
        "ssl": True,
        "cacertfile": "",
        "keyfile": "",
        "certfile": "",
        "verify": True,
        "server_name_indication": "db.example.org",
        "connect_timeout": "5s",
        "request_timeout": "30s",
        "retry_attempts": 3,
        "dead_letters": 1000,
    }


def _redis(user: str) -> dict[str, Any]:
    config = _database("", "username") | {
        "username": user,
        "database": 0,
        "server_name_indication": "redis.example.org",
    }
    return {name: value for name, value in config.items() if name not in ("server", "auto_reconnect")}


def _to_database(time: str) -> tuple[str, dict[str, Any]]:
    sql = (
        "insert into messages(id, client, topic, payload, arrived) "
        f"values (${{id}}, ${{clientid}}, ${{topic}}, ${{payload}}, {time})"
    )
    return 'SELECT id, clientid, topic, payload, timestamp FROM "garden/#"', {
        "sql": sql,
        "enable_batch": True,
        "batch_size": 100,
        "batch_time": 10,
        "batch_pool_size": 4,
        "insert_mode": "async",
        "sync_timeout": 5000,
        "sql_insert_null": False,
        "retry_for": "24h",
    }


_POSTGRESQL_TIME: Final = "to_timestamp(${timestamp}::double precision / 1000)"

RESOURCES: Final[dict[str, dict[str, Any]]] = {
    "web_hook": {
        "url": "https://hooks.example.org/rows",
        "method": "POST",
        "headers": {"authorization": "Bearer 6d0a7c"},
        "connect_timeout": "5s",
        "request_timeout": "5s",
        "pool_size": 8,
        "enable_pipelining": True,
        "cacertfile": "",
        "certfile": "",
        "keyfile": "",
        "verify": True,
        "server_name_indication": "hooks.example.org",
        "retry_attempts": 3,
        "dead_letters": 1000,
    },
    "bridge_mqtt": {
        "address": "mqtt.example.org:8883",
        "pool_size": 4,
        "clientid": "plant-7",
        "append": True,
        "username": "plant-7",
        "password": "correct horse battery staple",
        "mountpoint": "plants/7/",
        "disk_cache": "on",
        "proto_ver": "mqttv4",
        "keepalive": "60s",
        "reconnect_interval": "30s",
        "retry_interval": "20s",
        "bridge_mode": False,
        "ssl": True,
        "cacertfile": "",
        "keyfile": "",
        "certfile": "",
        "ciphers": "",
        "verify": True,
        "server_name_indication": "mqtt.example.org",
        "ingress": [{"remote_topic": "orders/7/#", "qos": 1, "local_topic": "orders/${topic}", "retain": False}],
    },
    "backend_opentsdb": {
        "server": "http://127.0.0.1:4242",
        "pool_size": 8,
        "retry_attempts": 3,
        "dead_letters": 1000,
    },
    "bridge_rabbit": {
        "server": "rabbit.example.org:5671",
        "username": "taipan",
        "password": "6d0a7c",
        "virtual_host": "/",
        "pool_size": 8,
        "timeout": "5s",
        "heartbeat": "30s",
        "auto_reconnect": "2s",
        "ssl": True,
        "cacertfile": "",
        "keyfile": "",
        "certfile": "",
        "verify": True,
        "server_name_indication": "rabbit.example.org",
        "retry_attempts": 3,
        "dead_letters": 1000,
    },
    "backend_mysql": _database("db.example.org:3306", "user"),
    **{
        name: _database("db.example.org:5432", "username")
        for name in ("backend_pgsql", "backend_timescale", "timescaledb", "backend_matrix")
    },
    "backend_redis_single": {"server": "redis.example.org:6379", **_redis("taipan"), "auto_reconnect": True},
    "backend_redis_sentinel": {
        "servers": "one.example.org:26379,two.example.org:26379",
        "sentinel": "mymaster",
        **_redis("taipan"),
        "auto_reconnect": True,
    },
    "backend_redis_cluster": {"servers": "one.example.org:6379,two.example.org:6379", **_redis("taipan")},
    "backend_influxdb_http": {
        "host": "influx.example.org",
        "port": 8086,
        "database": "garden",
        "username": "taipan",
        "password": "correct horse battery staple",
        "precision": "ms",
        "https_enabled": True,
        "tls_version": "tlsv1.2",
        "cacertfile": "",
        "keyfile": "",
        "certfile": "",
        "verify": True,
        "server_name_indication": "influx.example.org",
        "pool_size": 4,
        "connect_timeout": "5s",
        "request_timeout": "30s",
        "retry_attempts": 3,
        "dead_letters": 1000,
    },
    "backend_influxdb_http_v2": {
        "host": "influx.example.org",
        "port": 8086,
        "org": "home",
        "bucket": "garden",
        "token": "correct horse battery staple",
        "precision": "ms",
        "https_enabled": True,
        "tls_version": "tlsv1.2",
        "cacertfile": "",
        "keyfile": "",
        "certfile": "",
        "verify": True,
        "server_name_indication": "influx.example.org",
        "pool_size": 4,
        "connect_timeout": "5s",
        "request_timeout": "30s",
        "retry_attempts": 3,
        "dead_letters": 1000,
    },
    "backend_tdengine": {
        "host": "tdengine.example.org",
        "port": 6041,
        "username": "taipan",
        "password": "6d0a7c",
        "https_enabled": True,
        "tls_version": "tlsv1.2",
        "cacertfile": "",
        "keyfile": "",
        "certfile": "",
        "verify": True,
        "server_name_indication": "tdengine.example.org",
        "pool_size": 8,
        "connect_timeout": "5s",
        "request_timeout": "30s",
        "retry_attempts": 3,
        "dead_letters": 1000,
    },
    "backend_clickhouse": {
        "server": "https://clickhouse.example.org:8443",
        "database": "garden",
        "user": "taipan",
        "key": "correct horse battery staple",
        "cacertfile": "",
        "keyfile": "",
        "certfile": "",
        "verify": True,
        "server_name_indication": "clickhouse.example.org",
        "pool_size": 8,
        "connect_timeout": "5s",
        "request_timeout": "30s",
        "retry_attempts": 3,
        "dead_letters": 1000,
    },
    "bridge_kafka": {
        "servers": "kafka-1.example.org:9093,kafka-2.example.org:9093",
        "authentication_mechanism": "SCRAM_SHA_512",
        "username": "taipan",
        "password": "correct horse battery staple",
        "compression": "snappy",
        "max_batch_bytes": "900KB",
        "sync_timeout": "3s",
        "idempotence": True,
        "min_metadata_refresh_interval": "3s",
        "send_buffer": "1024KB",
        "tcp_keepalive": "0s",
        "query_api_versions": True,
        "ssl": True,
        "cacertfile": "",
        "keyfile": "",
        "certfile": "",
        "verify": True,
        "server_name_indication": "auto",
        "connect_timeout": "5s",
        "request_timeout": "30s",
        "retry_attempts": 3,
        "dead_letters": 1000,
    },
    "kafka_consumer": {
        "servers": "kafka-1.example.org:9093,kafka-2.example.org:9093",
        "authentication_mechanism": "SCRAM_SHA_512",
        "username": "taipan",
        "password": "correct horse battery staple",
        "group_id": "taipan",
        "topic_mapping": [
            {
                "kafka_topic": "commands",
                "mqtt_topic": "machines/${key}/command",
                "qos": 1,
                "payload_template": "${value}",
                "retain": False,
            }
        ],
        "key_encode_mode": "force_utf8",
        "value_encode_mode": "force_utf8",
        "max_bytes": "100KB",
        "max_payload_bytes": "1MB",
        "offset_reset_policy": "reset_to_latest",
        "send_buffer": "1024KB",
        "tcp_keepalive": "0s",
        "query_api_versions": True,
        "ssl": True,
        "cacertfile": "",
        "keyfile": "",
        "certfile": "",
        "verify": True,
        "server_name_indication": "auto",
        "connect_timeout": "5s",
        "request_timeout": "30s",
    },
}
"""``config`` of an example of each type, with every parameter."""

ACTIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "inspect": ('SELECT * FROM "garden/#"', {}),
    "do_nothing": ('SELECT * FROM "garden/#"', {}),
    "republish": (
        'SELECT payload.temperature as temperature, clientid FROM "garden/#"',
        {
            "target_topic": "warm/${clientid}",
            "target_qos": 1,
            "target_retain": False,
            "payload_tmpl": '{"celsius": ${temperature}}',
            "user_properties": {"source": "garden"},
            "user_properties_template": [],
            "mqtt_properties_template": [{"key": "Message-Expiry-Interval", "value": "3600"}],
        },
    ),
    "data_to_webserver": (
        'SELECT payload.temperature as temperature, clientid FROM "garden/#"',
        {
            "method": "POST",
            "path": "/devices/${clientid}",
            "headers": {"content-type": "application/json", "x-device": "${clientid}"},
            "body": '{"celsius": ${temperature}}',
            "payload_tmpl": "",
            "retry_for": "1h",
        },
    ),
    "data_to_mqtt_broker": (
        'SELECT payload, topic FROM "garden/#"',
        {"forward_topic": "from-home/${topic}", "payload_tmpl": "${payload}", "qos": "1", "retry_for": "24h"},
    ),
    "data_to_opentsdb": (
        "SELECT 'temperature' as metric, payload.tags as tags, payload.celsius as value FROM \"garden/#\"",
        {"details": False, "summary": True, "max_batch_size": 20, "sync": False, "sync_timeout": 0, "retry_for": 0},
    ),
    "data_to_mysql": _to_database("from_unixtime(${timestamp} / 1000)"),
    **{
        name: _to_database(_POSTGRESQL_TIME)
        for name in ("data_to_pgsql", "data_to_timescale", "data_to_timescaledb", "data_to_matrix")
    },
    "data_to_influxdb": (
        'SELECT payload.celsius as celsius, clientid, timestamp FROM "garden/#"',
        {
            "measurement": "temperature",
            "tags": {"client": "${clientid}"},
            "fields": {"celsius": "${celsius}"},
            "timestamp": "${timestamp}",
            "int_suffix": "float",
            "enable_batch": True,
            "batch_size": 100,
            "batch_time": 10,
            "batch_pool_size": 4,
            "retry_for": "24h",
        },
    ),
    "data_to_rabbit": (
        'SELECT payload.celsius as celsius, clientid, timestamp FROM "garden/#"',
        {
            "exchange": "garden",
            "exchange_type": "topic",
            "routing_key": "celsius.${clientid}",
            "durable": True,
            "payload_tmpl": "${celsius}",
            "retry_for": "24h",
        },
    ),
    "data_to_redis": (
        'SELECT payload.celsius as celsius, clientid, timestamp FROM "garden/#"',
        {
            "cmd": "HSET garden:${clientid} celsius ${celsius} at ${timestamp}",
            "enable_batch": True,
            "batch_size": 100,
            "batch_time": 10,
            "insert_mode": "async",
            "sync_timeout": 5000,
            "retry_for": "24h",
        },
    ),
    **{
        f"lookup_sub_to_{database}": ('SELECT * FROM "$events/client_connected"', {})
        for database in ("pgsql", "mysql", "redis")
    },
    "data_to_kafka": (
        'SELECT payload.celsius as celsius, clientid, pub_props FROM "garden/#"',
        {
            "topic": "garden",
            "type": "async",
            "strategy": "key_dispatch",
            "key": "clientid",
            "payload_tmpl": '{"celsius": ${celsius}}',
            "required_acks": "all_isr",
            "kafka_headers": "${pub_props}",
            "kafka_ext_headers": [{"key": "client", "value": "${clientid}"}],
            "kafka_header_value_encode_mode": "NONE",
            "partition_count_refresh_interval": "60s",
            "message_accumulation_size": 0,
            "message_accumulation_interval": 100,
            "retry_for": "24h",
        },
    ),
    "data_to_tdengine": (
        'SELECT payload.celsius as celsius, clientid, timestamp FROM "garden/#"',
        {
            "sql": "INSERT INTO d_${clientid} USING celsius TAGS('${clientid}') VALUES (${timestamp}, ${celsius})",
            "enable_batch": True,
            "batch_size": 100,
            "batch_time": 10,
            "batch_pool_size": 4,
            "insert_mode": "async",
            "sync_timeout": 5000,
            "sql_insert_null": False,
            "retry_for": "24h",
            "db_name": "garden",
        },
    ),
    "data_to_clickhouse": (
        'SELECT payload.celsius as celsius, clientid, timestamp FROM "garden/#"',
        {
            "sql": "INSERT INTO celsius (client, value, at) VALUES ('${clientid}', ${celsius}, ${timestamp})",
            "enable_batch": True,
            "batch_size": 100,
            "batch_time": 10,
            "batch_pool_size": 4,
            "insert_mode": "async",
            "sync_timeout": 5000,
            "sql_insert_null": False,
            "retry_for": "24h",
        },
    ),
}
"""SQL and ``params`` of an example of each action, with every parameter but ``$resource``."""

_HEAD: Final = """\
# Parameters of actions and resources

Use this page to look up the parameters of an action or a resource. `python -m tests.rules.reference` generates it from
their declarations; `GET /actions/{name}` and `GET /resource_types/{name}` return the same data. [Rules](rules.md)
explains how actions and resources behave, and [the API of rules](api/rules.md) lists the endpoints. Write times as
`500ms`, `5s`, `1m` or `2h`.

Each example is the body of a request; `API` and `TAIPAN` are as in the tutorial.
"""


def example_resource(name: str) -> dict[str, Any]:
    """The body of ``POST /resources``."""
    return {"id": f"resource:{name}", "type": name, "config": RESOURCES[name]}


def example_rule(name: str, resource: str | None) -> dict[str, Any]:
    """The body of ``POST /rules``."""
    sql, params = ACTIONS[name]
    own = {} if resource is None else {"$resource": resource}
    return {"rawsql": sql, "actions": [{"name": name, "params": own | params}]}


def render() -> str:
    """The page."""
    parts = [_HEAD]
    for resource in RESOURCE_TYPES:
        parts.append(f"## Resource `{resource.name}`\n\n{resource.description.en}.\n\n" + _table(resource.params))
        parts.append(_example("resources", example_resource(resource.name)))
    for action in ACTION_TYPES:
        parts.append(f"## Action `{action.name}`\n\n{action.description.en}.\n\n" + _table(action.params))
        resource_id = f"resource:{action.resource_types[0]}" if action.resource_types else None
        parts.append(_example("rules", example_rule(action.name, resource_id)))
    return "\n".join(parts)


def _table(params: tuple[Param, ...]) -> str:
    if not params:
        return "It has no parameters.\n"
    lines = ["| parameter | type | default | |", "|---|---|---|---|"]
    for param in sorted(params, key=lambda each: each.order):
        types = " or ".join([param.type] if isinstance(param.type, str) else param.type)
        default = "" if param.default is None or param.insist else f"`{json.dumps(param.default, ensure_ascii=False)}`"
        told = param.description.en.rstrip(".")
        if param.enum is not None:
            told += f". One of {', '.join(f'`{each}`' for each in param.enum)}"
        if param.range is not None:
            told += f". {number(param.range[0])} to {number(param.range[1])}"
        if param.required and (param.default is None or param.insist):
            told += ". Required"
        lines.append(f"| `{param.name}` | {types} | {default} | {told.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _example(path: str, body: dict[str, Any]) -> str:
    text = json.dumps(body, indent=2, ensure_ascii=False)
    return f"```\ncurl -u $TAIPAN -X POST $API/{path} -d @- <<'JSON'\n{text}\nJSON\n```\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
