"""Parameters of resources that no other test shows an effect of, and the list of those that show the effect of each."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from aiohttp import web

from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.influxdb import action as influxdb_action
from taipan.ruleengine.sinks.influxdb import resource as influxdb
from taipan.ruleengine.sinks.mqtt_bridge import resource as mqtt_bridge
from taipan.ruleengine.sinks.web_hook import action as web_hook_action
from taipan.ruleengine.sinks.web_hook import resource as web_hook
from taipan.ruleengine.types.builtin import ACTION_TYPES, RESOURCE_TYPES
from tests.support.certificates import Certificates
from tests.support.fake_engine import FakeEngine, published
from tests.support.http_sink import HttpSink
from tests.support.waiting import until

TESTS: Final = Path(__file__).resolve().parents[2]
HERE: Final = "ruleengine/resources/test_parameter_effects.py"
HOOK: Final = "ruleengine/sinks/test_web_hook.py"
BRIDGE: Final = "ruleengine/sinks/test_mqtt_bridge.py"
TRANSPORTS: Final = "ruleengine/sinks/test_bridge_transports.py"
TSDB: Final = "ruleengine/sinks/test_opentsdb.py"
INFLUX: Final = "ruleengine/sinks/test_influxdb.py"
CLICKHOUSE: Final = "ruleengine/sinks/test_clickhouse.py"
REPUBLISH: Final = "ruleengine/actions/test_republish.py"
PG: Final = "systems/test_postgresql.py"
MYSQL: Final = "systems/test_mysql.py"
REDIS: Final = "systems/test_redis.py"
KAFKA: Final = "systems/test_kafka.py"
RABBIT: Final = "systems/test_rabbitmq.py"
TDENGINE: Final = "ruleengine/sinks/test_tdengine.py"
CONSUMER: Final = "systems/test_kafka_consumer.py"
CONTRACT: Final = "systems/contract.py"
SET_ASIDE: Final = "ruleengine/actions/test_set_aside.py"

_KEPT: Final = f"{SET_ASIDE}::test_none_is_kept_where_none_is_wanted_and_a_resource_has_limits_of_its_own"


_HANGS: Final = f"{CONTRACT}::test_one_that_hangs_is_given_up_in_time"


def _database(tests: str, user: str) -> dict[str, str]:
    login = f"{tests}::test_wrong_credentials"
    tls = ("ssl", "cacertfile", "keyfile", "certfile", "verify", "server_name_indication")
    return {
        **dict.fromkeys(("server", "database", user, "password"), login),
        "pool_size": f"{tests}::test_batch_pool_size_and_pool_size",
        "auto_reconnect": f"{tests}::test_auto_reconnect",
        **dict.fromkeys(tls, f"{tests}::test_tls"),
        **dict.fromkeys(("connect_timeout", "request_timeout"), _HANGS),
        **dict.fromkeys(("retry_attempts", "dead_letters"), _KEPT),
    }


def _to_database(tests: str) -> dict[str, str]:
    workers = f"{tests}::test_batch_pool_size_and_pool_size"
    return {
        "sql": f"{tests}::test_the_example_of_emqx",
        **dict.fromkeys(("enable_batch", "batch_pool_size"), workers),
        **dict.fromkeys(("batch_size", "batch_time"), f"{tests}::test_the_example_of_emqx"),
        **dict.fromkeys(("insert_mode", "sync_timeout"), _HANGS),
        "sql_insert_null": f"{tests}::test_sql_insert_null",
        "retry_for": f"{SET_ASIDE}::test_a_row_waits_no_longer_than_its_action_wants_and_others_go_on_waiting",
    }


_OF_REDIS: Final = {
    **dict.fromkeys(("username", "password"), f"{REDIS}::test_credentials"),
    "database": f"{REDIS}::test_database_and_pool_size",
    "pool_size": f"{REDIS}::test_database_and_pool_size",
    **dict.fromkeys(
        ("ssl", "cacertfile", "keyfile", "certfile", "verify", "server_name_indication"), f"{REDIS}::test_tls"
    ),
    **dict.fromkeys(("connect_timeout", "request_timeout"), _HANGS),
    **dict.fromkeys(("retry_attempts", "dead_letters"), _KEPT),
}
_OF_INFLUX: Final = {
    "host": f"{INFLUX}::test_requests",
    "port": f"{INFLUX}::test_requests",
    "precision": f"{INFLUX}::test_precision",
    "https_enabled": f"{INFLUX}::test_whom_it_trusts",
    "tls_version": f"{INFLUX}::test_whom_it_trusts",
    "cacertfile": f"{INFLUX}::test_whom_it_trusts",
    "verify": f"{INFLUX}::test_whom_it_trusts",
    "server_name_indication": f"{INFLUX}::test_whom_it_trusts",
    "certfile": f"{INFLUX}::test_a_client_certificate_is_shown",
    "keyfile": f"{INFLUX}::test_a_client_certificate_is_shown",
    "pool_size": f"{INFLUX}::test_pool_size_requests_go_at_the_same_time",
    "connect_timeout": f"{HERE}::test_connect_timeout_of_influxdb",
    "request_timeout": f"{INFLUX}::test_a_server_that_hangs_is_given_up_in_time",
    "retry_attempts": f"{SET_ASIDE}::test_none_is_kept_where_none_is_wanted_and_a_resource_has_limits_of_its_own",
    "dead_letters": f"{SET_ASIDE}::test_none_is_kept_where_none_is_wanted_and_a_resource_has_limits_of_its_own",
}
EFFECTS: Final[dict[str, dict[str, str]]] = {
    "web_hook": {
        "url": f"{HOOK}::test_a_url_is_sent_encoded",
        "method": f"{HOOK}::test_the_method_is_the_resources",
        "headers": f"{HOOK}::test_the_specifications_form_posts_the_row_as_json",
        "connect_timeout": f"{HERE}::test_connect_timeout",
        "request_timeout": f"{HOOK}::test_a_server_that_hangs_is_given_up_in_time_and_makes_nobody_wait",
        "pool_size": f"{HERE}::test_pool_size_requests_go_at_the_same_time",
        "enable_pipelining": f"{HOOK}::test_enable_pipelining_says_whether_a_connection_is_used_again",
        "cacertfile": "ruleengine/resources/test_tls.py::test_whom_a_web_hook_trusts",
        "verify": "ruleengine/resources/test_tls.py::test_whom_a_web_hook_trusts",
        "server_name_indication": "ruleengine/resources/test_tls.py::test_whom_a_web_hook_trusts",
        "certfile": "ruleengine/resources/test_tls.py::test_a_client_certificate_is_shown",
        "keyfile": "ruleengine/resources/test_tls.py::test_a_client_certificate_is_shown",
        "retry_attempts": f"{SET_ASIDE}::test_none_is_kept_where_none_is_wanted_and_a_resource_has_limits_of_its_own",
        "dead_letters": f"{SET_ASIDE}::test_none_is_kept_where_none_is_wanted_and_a_resource_has_limits_of_its_own",
    },
    "bridge_mqtt": {
        "address": f"{TRANSPORTS}::test_what_an_address_means",
        "pool_size": f"{BRIDGE}::test_messages_arrive_there_with_their_qos_and_in_order",
        "clientid": f"{BRIDGE}::test_the_client_identifier_is_the_same_after_a_restart_and_another_on_another_node",
        "append": f"{BRIDGE}::test_user_client_identifier_and_bridge_are_told",
        "username": f"{BRIDGE}::test_user_client_identifier_and_bridge_are_told",
        "password": f"{BRIDGE}::test_user_client_identifier_and_bridge_are_told",
        "mountpoint": f"{BRIDGE}::test_messages_arrive_there_with_their_qos_and_in_order",
        "disk_cache": f"{BRIDGE}::test_disk_cache_says_whether_what_waits_is_on_disk",
        "proto_ver": f"{TRANSPORTS}::test_every_version_goes_over_every_transport",
        "keepalive": f"{BRIDGE}::test_user_client_identifier_and_bridge_are_told",
        "reconnect_interval": f"{HERE}::test_reconnect_interval",
        "retry_interval": f"{BRIDGE}::test_a_message_that_nobody_acknowledges_is_sent_again_on_a_new_connection",
        "bridge_mode": f"{BRIDGE}::test_bridge_mode_keeps_mosquitto_from_sending_back",
        "ssl": f"{TRANSPORTS}::test_every_version_goes_over_every_transport",
        "cacertfile": f"{TRANSPORTS}::test_whom_a_bridge_trusts",
        "verify": f"{TRANSPORTS}::test_whom_a_bridge_trusts",
        "server_name_indication": f"{TRANSPORTS}::test_whom_a_bridge_trusts",
        "certfile": f"{TRANSPORTS}::test_a_client_certificate_is_shown_where_it_is_asked_for",
        "keyfile": f"{TRANSPORTS}::test_a_client_certificate_is_shown_where_it_is_asked_for",
        "ciphers": f"{HERE}::test_ciphers",
        "ingress": f"{BRIDGE}::test_ingress_publishes_here_what_is_published_there",
    },
    "backend_opentsdb": {
        "server": f"{TSDB}::test_points_are_put_in_batches_of_at_most_twenty",
        "pool_size": f"{TSDB}::test_pool_size_requests_go_at_the_same_time",
        "retry_attempts": f"{SET_ASIDE}::test_none_is_kept_where_none_is_wanted_and_a_resource_has_limits_of_its_own",
        "dead_letters": f"{SET_ASIDE}::test_none_is_kept_where_none_is_wanted_and_a_resource_has_limits_of_its_own",
    },
    **{
        name: _database(PG, "username")
        for name in ("backend_pgsql", "backend_timescale", "timescaledb", "backend_matrix")
    },
    "backend_mysql": _database(MYSQL, "user"),
    "data_to_mysql": _to_database(MYSQL),
    **{
        name: _to_database(PG)
        for name in ("data_to_pgsql", "data_to_timescale", "data_to_timescaledb", "data_to_matrix")
    },
    "backend_influxdb_http": _OF_INFLUX
    | dict.fromkeys(("database", "username", "password"), f"{INFLUX}::test_requests"),
    "backend_influxdb_http_v2": _OF_INFLUX | dict.fromkeys(("org", "bucket", "token"), f"{INFLUX}::test_requests"),
    "bridge_rabbit": {
        **dict.fromkeys(("server", "username", "password", "virtual_host"), f"{RABBIT}::test_credentials"),
        "pool_size": f"{RABBIT}::test_pool_size",
        "timeout": _HANGS,
        **dict.fromkeys(("heartbeat", "auto_reconnect"), f"{RABBIT}::test_auto_reconnect_and_heartbeat"),
        **dict.fromkeys(
            ("ssl", "cacertfile", "keyfile", "certfile", "verify", "server_name_indication"), f"{RABBIT}::test_tls"
        ),
        **dict.fromkeys(("retry_attempts", "dead_letters"), _KEPT),
    },
    "data_to_rabbit": {
        **dict.fromkeys(("exchange", "routing_key", "durable", "payload_tmpl"), f"{RABBIT}::test_messages"),
        "exchange_type": f"{RABBIT}::test_an_exchange_is_created",
        "retry_for": f"{SET_ASIDE}::test_a_row_waits_no_longer_than_its_action_wants_and_others_go_on_waiting",
    },
    "backend_redis_single": {
        **_OF_REDIS,
        "server": f"{REDIS}::test_credentials",
        "auto_reconnect": f"{REDIS}::test_auto_reconnect",
    },
    "backend_redis_sentinel": {
        **_OF_REDIS,
        **dict.fromkeys(("servers", "sentinel"), f"{REDIS}::test_rows_follow_the_master"),
        "auto_reconnect": f"{REDIS}::test_auto_reconnect",
    },
    "backend_redis_cluster": {**_OF_REDIS, "servers": f"{REDIS}::test_slots"},
    **{f"lookup_sub_to_{database}": {} for database in ("pgsql", "mysql", "redis")},
    "data_to_redis": {
        "cmd": f"{REDIS}::test_the_example_of_emqx",
        **dict.fromkeys(
            ("enable_batch", "batch_size", "batch_time"),
            f"{REDIS}::test_a_batch_is_a_transaction_and_a_refused_row_concerns_no_other",
        ),
        **dict.fromkeys(("insert_mode", "sync_timeout"), _HANGS),
        "retry_for": f"{SET_ASIDE}::test_a_row_waits_no_longer_than_its_action_wants_and_others_go_on_waiting",
    },
    "backend_tdengine": {
        **dict.fromkeys(("host", "port", "username", "password"), f"{TDENGINE}::test_a_request"),
        **dict.fromkeys(
            ("https_enabled", "tls_version", "cacertfile", "verify", "server_name_indication", "certfile", "keyfile"),
            f"{TDENGINE}::test_whom_it_trusts",
        ),
        "pool_size": f"{TDENGINE}::test_pool_size_requests_go_at_the_same_time",
        "connect_timeout": f"{HERE}::test_connect_timeout_of_influxdb",
        "request_timeout": f"{TDENGINE}::test_a_server_that_hangs_is_given_up_in_time",
        **dict.fromkeys(("retry_attempts", "dead_letters"), _KEPT),
    },
    "data_to_tdengine": {
        "sql": f"{TDENGINE}::test_statements",
        "db_name": f"{TDENGINE}::test_a_request",
        "sql_insert_null": f"{TDENGINE}::test_sql_insert_null",
        "enable_batch": f"{TDENGINE}::test_one_row_each",
        **dict.fromkeys(
            ("batch_size", "batch_time"), f"{TDENGINE}::test_the_rows_of_a_batch_follow_each_other_without_commas"
        ),
        "batch_pool_size": f"{TDENGINE}::test_pool_size_requests_go_at_the_same_time",
        **dict.fromkeys(("insert_mode", "sync_timeout"), f"{TDENGINE}::test_insert_mode_and_sync_timeout"),
        "retry_for": f"{SET_ASIDE}::test_a_row_waits_no_longer_than_its_action_wants_and_others_go_on_waiting",
    },
    "backend_clickhouse": {
        **dict.fromkeys(("server", "database", "user", "key"), f"{CLICKHOUSE}::test_a_request"),
        **dict.fromkeys(
            ("cacertfile", "verify", "server_name_indication", "certfile", "keyfile"),
            f"{CLICKHOUSE}::test_whom_it_trusts",
        ),
        "pool_size": f"{CLICKHOUSE}::test_pool_size_requests_go_at_the_same_time",
        "connect_timeout": f"{HERE}::test_connect_timeout_of_influxdb",
        "request_timeout": f"{CLICKHOUSE}::test_a_server_that_hangs_is_given_up_in_time",
        "retry_attempts": f"{SET_ASIDE}::test_none_is_kept_where_none_is_wanted_and_a_resource_has_limits_of_its_own",
        "dead_letters": f"{SET_ASIDE}::test_none_is_kept_where_none_is_wanted_and_a_resource_has_limits_of_its_own",
    },
    "bridge_kafka": {
        **dict.fromkeys(
            ("servers", "authentication_mechanism", "username", "password"),
            f"{KAFKA}::test_logins_wrong_ones_and_rotated_ones",
        ),
        **dict.fromkeys(
            ("ssl", "cacertfile", "keyfile", "certfile", "verify", "server_name_indication"), f"{KAFKA}::test_tls"
        ),
        **dict.fromkeys(("compression", "max_batch_bytes"), f"{KAFKA}::test_compression_and_batches_that_are_full"),
        **dict.fromkeys(("connect_timeout", "request_timeout", "sync_timeout"), _HANGS),
        "idempotence": f"{KAFKA}::test_a_batch_whose_answer_is_lost",
        "min_metadata_refresh_interval": f"{KAFKA}::test_min_metadata_refresh_interval",
        **dict.fromkeys(("send_buffer", "tcp_keepalive"), f"{KAFKA}::test_options_of_sockets"),
        "query_api_versions": f"{KAFKA}::test_a_configuration_that_cannot_be_is_refused",
        **dict.fromkeys(("retry_attempts", "dead_letters"), _KEPT),
    },
    "kafka_consumer": {
        **dict.fromkeys(("servers", "authentication_mechanism", "username", "password"), f"{CONSUMER}::test_a_login"),
        "group_id": f"{CONSUMER}::test_members_share_the_partitions",
        "topic_mapping": f"{CONSUMER}::test_records_become_messages",
        **dict.fromkeys(("key_encode_mode", "value_encode_mode"), f"{CONSUMER}::test_encodings"),
        "max_bytes": f"{CONSUMER}::test_max_bytes",
        "max_payload_bytes": f"{CONSUMER}::test_records_that_cannot_be_messages_are_skipped",
        "offset_reset_policy": f"{CONSUMER}::test_offset_reset_policy",
        # The same connections.
        **dict.fromkeys(
            ("ssl", "cacertfile", "keyfile", "certfile", "verify", "server_name_indication"), f"{KAFKA}::test_tls"
        ),
        **dict.fromkeys(("connect_timeout", "request_timeout"), _HANGS),
        **dict.fromkeys(("send_buffer", "tcp_keepalive"), f"{KAFKA}::test_options_of_sockets"),
        "query_api_versions": f"{KAFKA}::test_a_configuration_that_cannot_be_is_refused",
    },
    "data_to_kafka": {
        **dict.fromkeys(("topic", "key", "payload_tmpl"), f"{KAFKA}::test_a_record"),
        "type": _HANGS,
        "strategy": f"{KAFKA}::test_strategies",
        "required_acks": f"{KAFKA}::test_required_acks",
        **dict.fromkeys(
            ("kafka_headers", "kafka_ext_headers", "kafka_header_value_encode_mode"), f"{KAFKA}::test_headers"
        ),
        "partition_count_refresh_interval": f"{KAFKA}::test_partitions_that_are_added",
        **dict.fromkeys(
            ("message_accumulation_size", "message_accumulation_interval"), f"{KAFKA}::test_rows_accumulate"
        ),
        "retry_for": f"{SET_ASIDE}::test_a_row_waits_no_longer_than_its_action_wants_and_others_go_on_waiting",
    },
    "inspect": {},
    "do_nothing": {},
    "republish": {
        "target_topic": f"{REPUBLISH}::test_a_message_made_of_the_result",
        "target_qos": f"{REPUBLISH}::test_every_parameter",
        "target_retain": f"{REPUBLISH}::test_every_parameter",
        "payload_tmpl": f"{REPUBLISH}::test_every_parameter",
        "user_properties": f"{REPUBLISH}::test_user_properties",
        "user_properties_template": f"{REPUBLISH}::test_properties_as_emqx_enterprise_has_them",
        "mqtt_properties_template": f"{REPUBLISH}::test_properties_as_emqx_enterprise_has_them",
    },
    "data_to_webserver": {
        "method": f"{HOOK}::test_the_form_of_4_4",
        "path": f"{HOOK}::test_the_form_of_4_4",
        "headers": f"{HOOK}::test_the_form_of_4_4",
        "body": f"{HOOK}::test_the_form_of_4_4",
        "payload_tmpl": f"{HOOK}::test_the_method_is_the_resources",
        "retry_for": "api/test_dead_letters.py::test_fallbacks_run_while_the_server_is_away",
    },
    "data_to_mqtt_broker": {
        "forward_topic": f"{BRIDGE}::test_topic_payload_and_retain",
        "payload_tmpl": f"{BRIDGE}::test_topic_payload_and_retain",
        "qos": f"{BRIDGE}::test_the_qos_of_the_action",
        "retry_for": f"{SET_ASIDE}::test_a_row_waits_no_longer_than_its_action_wants_and_others_go_on_waiting",
    },
    "data_to_opentsdb": {
        "details": f"{TSDB}::test_flags_of_the_request",
        "summary": f"{TSDB}::test_flags_of_the_request",
        "max_batch_size": f"{TSDB}::test_max_batch_size_is_the_actions",
        "sync": f"{TSDB}::test_synchronous_calls_carry_one_point_each",
        "sync_timeout": f"{TSDB}::test_synchronous_calls_carry_one_point_each",
        "retry_for": f"{SET_ASIDE}::test_a_row_waits_no_longer_than_its_action_wants_and_others_go_on_waiting",
    },
    "data_to_influxdb": {
        "measurement": f"{INFLUX}::test_measurement_tags_and_timestamp",
        "tags": f"{INFLUX}::test_measurement_tags_and_timestamp",
        "fields": f"{INFLUX}::test_fields",
        "timestamp": f"{INFLUX}::test_measurement_tags_and_timestamp",
        "int_suffix": f"{INFLUX}::test_int_suffix",
        "enable_batch": f"{INFLUX}::test_without_batches_each_row_has_a_request",
        "batch_size": f"{INFLUX}::test_batches_and_the_row_that_is_refused",
        "batch_time": f"{INFLUX}::test_batches_and_the_row_that_is_refused",
        "batch_pool_size": f"{INFLUX}::test_pool_size_requests_go_at_the_same_time",
        "retry_for": f"{SET_ASIDE}::test_a_row_waits_no_longer_than_its_action_wants_and_others_go_on_waiting",
    },
    "data_to_clickhouse": {
        "sql": f"{CLICKHOUSE}::test_statements",
        "sql_insert_null": f"{CLICKHOUSE}::test_sql_insert_null",
        "enable_batch": f"{CLICKHOUSE}::test_one_row_each",
        "batch_size": f"{CLICKHOUSE}::test_the_tuples_of_a_batch_share_a_statement",
        "batch_time": f"{CLICKHOUSE}::test_the_tuples_of_a_batch_share_a_statement",
        "batch_pool_size": f"{CLICKHOUSE}::test_pool_size_requests_go_at_the_same_time",
        "insert_mode": f"{CLICKHOUSE}::test_insert_mode_and_sync_timeout",
        "sync_timeout": f"{CLICKHOUSE}::test_insert_mode_and_sync_timeout",
        "retry_for": f"{SET_ASIDE}::test_a_row_waits_no_longer_than_its_action_wants_and_others_go_on_waiting",
    },
}
"""Of each type the test that shows that a parameter has its effect. ``$resource``: every one of its action."""


def test_every_parameter_has_a_test_of_its_effect() -> None:
    declared = {each.name: {param.name for param in each.params} - {"$resource"}
                for each in (*RESOURCE_TYPES, *ACTION_TYPES)}  # fmt: skip
    assert declared == {name: set(params) for name, params in EFFECTS.items()}
    sources = {}
    for params in EFFECTS.values():
        for place in params.values():
            file, _, function = place.partition("::")
            if file not in sources:
                text = (TESTS / file).read_text(encoding="utf-8")
                kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
                sources[file] = {each.name for each in ast.parse(text).body if isinstance(each, kinds)}
            assert function in sources[file], place


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    yield made
    await made.close()


@contextlib.contextmanager
def _full() -> Iterator[int]:
    """The port of a server whose system answers no more: its queue of connections that nobody has accepted is full."""
    with contextlib.ExitStack() as ends:
        full = ends.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            each = ends.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        yield full.getsockname()[1]


@pytest.mark.asyncio
async def test_connect_timeout(engine: FakeEngine) -> None:
    with _full() as port:
        url = f"http://127.0.0.1:{port}"
        hook = engine.run(web_hook.TYPE, url=url, connect_timeout="50ms", request_timeout="1h")
        engine.action(web_hook_action.TYPE).run({"x": 1}, published())
        await until(lambda: hook.status.buffer.retried > 0)


@pytest.mark.asyncio
async def test_connect_timeout_of_influxdb(engine: FakeEngine) -> None:
    with _full() as port:
        made = engine.run(
            influxdb.RESOURCES[0], host="127.0.0.1", port=port, database="d", connect_timeout="50ms",
            request_timeout="1h",
        )  # fmt: skip
        engine.action(influxdb_action.TYPE, measurement="m", fields={"x": "1"}).run({"x": 1}, published())
        await until(lambda: made.status.buffer.retried > 0)


@pytest.mark.asyncio
async def test_pool_size_requests_go_at_the_same_time(engine: FakeEngine) -> None:
    released = asyncio.Event()
    going = most = 0

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        nonlocal going, most
        going += 1
        most = max(most, going)
        await released.wait()
        going -= 1
        return web.Response()

    sink = await HttpSink().start()
    sink.answer = answer
    engine.run(web_hook.TYPE, url=sink.url, pool_size=3)
    act = engine.action(web_hook_action.TYPE)
    for number in range(30):
        act.run({"n": number}, published(client_id=f"c{number}"))
    await until(lambda: going == 3)
    released.set()
    await until(lambda: engine.report.successes == 30)
    assert most == 3
    await sink.stop()


@pytest.mark.asyncio
async def test_reconnect_interval(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the pauses grow up to it: ``test_the_pauses_between_attempts_grow_up_to_the_longest``."""
    seen = []
    real = mqtt_bridge.MqttClient

    def made(client_id: str, options: Any, *more: Any) -> Any:
        seen.append(options.reconnect_interval)
        return real(client_id, options, *more)

    monkeypatch.setattr(mqtt_bridge, "MqttClient", made)
    for given in ("20ms", "2m"):
        engine.make(mqtt_bridge.TYPE, address="127.0.0.1:1", pool_size=1, reconnect_interval=given)
    assert seen == [0.02, 120.0]


@pytest.mark.parametrize("suite", ["AES128-GCM-SHA256", "AES256-GCM-SHA384"])
@pytest.mark.asyncio
async def test_ciphers(engine: FakeEngine, tmp_path: Path, suite: str) -> None:
    certificates = Certificates(tmp_path)
    certfile, keyfile = certificates.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certfile, keyfile)
    agreed: list[str] = []

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        agreed.append(writer.get_extra_info("cipher")[0])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    ciphers = f"ECDHE-ECDSA-{suite},ECDHE-RSA-{suite}"
    with pytest.raises(ResourceError):
        await engine.make(mqtt_bridge.TYPE, address=address, ssl=True, ciphers=ciphers).test()
    assert [each.partition("-")[2].partition("-")[2] for each in agreed] == [suite]
    server.close()
