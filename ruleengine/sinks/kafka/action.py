"""The action ``data_to_kafka``: one record for each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from ...actions.action import Action, ActionContext, ActionFailed, ActionType, Row
from ...actions.message_facts import order_key
from ...actions.sink_action import to_sink
from ...actions.template import Template
from ...event import Event
from ...events.hops import NAME
from ...functions.budget import Budget
from ...functions.undefined import UNDEFINED
from ...functions.values import encode_json, value_text
from ...params import RESOURCE, Param, ParamError, Text, read_duration, resource_param, retry_for_param
from ...resources.sink import SinkRequest, SinkResource
from .options import KEY_DISPATCH, RANDOM, ROUND_ROBIN, ProduceOptions, encode_record
from .resource import Kafka

_ACKS: Final = {"all_isr": -1, "leader_only": 1, "none": 0}
_STRATEGIES: Final = {
    RANDOM: RANDOM, ROUND_ROBIN: ROUND_ROBIN, KEY_DISPATCH: KEY_DISPATCH, "first_key_dispatch": KEY_DISPATCH,
}  # fmt: skip
"""The last one is the name before EMQX 4.3."""
_COLUMNS: Final = frozenset({"clientid", "username", "topic"})
_NO_KEY: Final = "none"
_GROUP: Final = "kafka"
"""Rows of all actions share requests."""
_MAX_ROWS: Final = 1000
_MAX_WAIT: Final = 60_000
_MAX_HEADERS: Final = 100


class DataToKafka:
    """Creates the record."""

    def __init__(self, context: ActionContext) -> None:
        """Raises ParamError."""
        params = context.params
        self._max_hops = context.node.settings.max_hops
        self._options = ProduceOptions(
            params["topic"],
            _ACKS[params["required_acks"]],
            _STRATEGIES[params["strategy"]],
            read_duration("partition_count_refresh_interval", params["partition_count_refresh_interval"], 1.0),
        ).written()
        if params["topic"] in (".", ".."):
            raise ParamError("topic", "Kafka does not accept this name")
        key = params["key"]
        self._column = key if key in _COLUMNS else ""
        self._key = Template(key) if key not in _COLUMNS and key not in (_NO_KEY, "") else None
        self._value = Template(params["payload_tmpl"])
        self._headers = _headers_template(params["kafka_headers"])
        self._more = [_header(each) for each in params["kafka_ext_headers"]]
        if len(self._more) > _MAX_HEADERS:
            raise ParamError("kafka_ext_headers", f"more than {_MAX_HEADERS} headers")
        self._as_json = params["kafka_header_value_encode_mode"] == "JSON"
        size = params["message_accumulation_size"]
        if not isinstance(size, int):
            raise ParamError("message_accumulation_size", "expected a whole number")
        self._max_batch = size or _MAX_ROWS
        self._linger = params["message_accumulation_interval"] / 1000 if size else 0.0

    def request(self, row: Row, event: Event, sink: Kafka) -> SinkRequest:
        key: bytes | None = None
        if self._column:
            value = event.columns.get(self._column, UNDEFINED)
            key = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else None
        elif self._key is not None:
            key = self._key.render_bytes(row)
        hops = event.hops
        if hops >= self._max_hops:
            raise ActionFailed(
                f"a loop: {hops} rules and brokers have already handled the message (ruleengine.max_hops)"
            )
        headers: list[tuple[str, bytes]] = [(NAME, str(hops).encode())] if hops else []
        if self._headers is not None or self._more:
            headers += self._all_headers(row)
        body = encode_record((self._options, key, self._value.render_bytes(row), headers))
        return SinkRequest(body, order_key(event), _GROUP, self._max_batch, self._linger)

    def _all_headers(self, row: Row) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        if self._headers is not None:
            found += [(name, self._encoded(value)) for name, value in _pairs(self._headers.value(row))]
        for name, template in self._more:
            found.append((_text(name.render(row)), self._encoded(template.value(row))))
        if len(found) > _MAX_HEADERS:
            raise ValueError(f"kafka_headers: more than {_MAX_HEADERS} headers")
        return found

    def _encoded(self, value: object) -> bytes:
        text = encode_json(value, Budget()) if self._as_json else value_text(value, Budget())
        return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def _pairs(value: object) -> Iterable[tuple[str, object]]:
    """Return the headers in an object, or in a list of objects with ``key`` and ``value``. Raises ValueError."""
    if value is UNDEFINED or value is None or value == "":
        return ()
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list) and all(isinstance(each, dict) and each.keys() >= {"key", "value"} for each in value):
        return [(_text(each["key"]), each["value"]) for each in value]
    raise ValueError("kafka_headers: expected an object, or a list of objects with key and value")


def _text(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError("kafka_headers: the name of a header must be a string")
    return name


def _headers_template(text: str) -> Template | None:
    if not text:
        return None
    template = Template(text)
    if not template.single:
        raise ParamError("kafka_headers", "expected one placeholder, such as ${pub_props}")
    return template


def _header(given: object) -> tuple[Template, Template]:
    if not isinstance(given, Mapping) or set(given) != {"key", "value"}:
        raise ParamError("kafka_ext_headers", "expected objects with key and value")
    key, value = given["key"], given["value"]
    if not isinstance(key, str) or not isinstance(value, str) or not key:
        raise ParamError("kafka_ext_headers", "key and value must be strings, and key must not be empty")
    return Template(key), Template(value) if value else _EMPTY


class _Empty(Template):
    """A header without a value; a template without a text would be the whole row."""

    def value(self, row: Mapping[str, object]) -> object:
        return ""


_EMPTY: Final = _Empty("")


def _create(context: ActionContext) -> Action:
    """Return an action. Raises ParamError."""
    params = context.params
    if params["type"] == "sync" and not params.get("retry_for"):
        resource = context.resource(params[RESOURCE])
        sink = resource.sink if isinstance(resource, SinkResource) else None
        if isinstance(sink, Kafka):
            context = replace(context, params={**params, "retry_for": sink.sync_timeout})
    return to_sink(Kafka, DataToKafka)(context)


def _param(name: str, order: int, title: Text, text: Text, **more: Any) -> Param:
    return Param(name, order, "string", title, text, **more)


TYPE: Final = ActionType(
    "data_to_kafka",
    Text("Data bridge to Kafka", "桥接数据到 Kafka"),
    Text("Write each row as a record into a Kafka topic", "将每条数据写入 Kafka 主题"),
    _create,
    (
        resource_param("bridge_kafka"),
        _param("topic", 1, Text("Kafka Topic", "Kafka 主题"), Text("The Kafka topic", "Kafka 的主题"),
               required=True, format="[a-zA-Z0-9._-]{1,249}"),
        _param("type", 2, Text("Type", "操作类型"),
               Text("async: a row waits for an unavailable cluster; sync: it fails after sync_timeout of the resource, "
                    "and the fallbacks run", "async：集群不可用时数据等待；sync：超过同步超时即失败并执行备选动作"),
               default="async", enum=["async", "sync"]),
        _param("strategy", 3, Text("Partition Strategy", "分区选择策略"),
               Text("How the partition of a record is chosen: random, in turn, or by its key as Kafka's own clients do",
                    "分区选择方式：随机、轮询，或按 Key（与 Kafka 客户端相同）"),
               default=RANDOM, enum=list(_STRATEGIES)),
        _param("key", 4, Text("Key", "Key"),
               Text("none, clientid, username, topic, or a template such as ${payload.id}",
                    "none、clientid、username、topic，或模板如 ${payload.id}"), default=_NO_KEY),
        _param("payload_tmpl", 5, Text("Payload Template", "消息内容模板"),
               Text("Template of the value; empty: the whole row as JSON", "消息内容模板；留空则为整条数据的 JSON"),
               default="", input="textarea"),
        _param("required_acks", 6, Text("Required Acks", "应答要求"),
               Text("Which replicas confirm a record: all in sync, the leader, or none, which can lose records",
                    "由谁确认：所有同步副本、仅 leader，或无需确认（可能丢失）"),
               default="all_isr", enum=list(_ACKS)),
        _param("kafka_headers", 7, Text("Headers", "消息头"),
               Text("A placeholder of an object, or of a list of objects with key and value, whose members become "
                    "headers: ${pub_props}", "对象或 key/value 列表的占位符，其成员成为消息头：${pub_props}"),
               default=""),
        Param("kafka_ext_headers", 8, "array", Text("More Headers", "附加消息头"),
              Text("Objects with key and value; both are templates", "含 key 与 value 模板的对象列表"),
              default=[], items={"type": "object", "schema": {}}),
        _param("kafka_header_value_encode_mode", 9, Text("Header Values", "消息头值编码"),
               Text("NONE: as text, an object as JSON; JSON: every value as JSON, a string with its quotes",
                    "NONE：文本，对象为 JSON；JSON：所有值均为 JSON"), default="NONE", enum=["NONE", "JSON"]),
        _param("partition_count_refresh_interval", 10, Text("Partition Refresh", "分区数刷新间隔"),
               Text("How often the number of partitions is asked for", "查询分区数的间隔"), default="60s"),
        Param("message_accumulation_size", 11, "number", Text("Accumulation Size", "消息累积数量"),
              Text("How many rows may share a request, and wait for others; 0: up to 1000, without waiting",
                   "一个请求最多包含的消息数，并等待累积；0：最多 1000 条且不等待"), default=0, range=(0, 10_000)),
        Param("message_accumulation_interval", 12, "number", Text("Accumulation Interval", "消息累积间隔"),
              Text("How long a row waits for others, in milliseconds, if message_accumulation_size is not 0",
                   "消息累积数量不为 0 时的最长等待（毫秒）"), default=100, range=(0, _MAX_WAIT)),
        retry_for_param(13),
    ),
    resource_types=("bridge_kafka",),
    category="data_forward",
    order=30,
)  # fmt: skip
ACTIONS: Final = (TYPE,)
