"""The resource type ``kafka_consumer``: topics of Kafka whose records are published on this node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...params import Param, ParamError, Text
from ...resources.lane_connections import missing
from ...resources.receiver import Receiver, ReceiverContext, receiving
from ...resources.resource import ResourceError, ResourceType
from .connection import CONNECTION, network_params, read_connection, read_size, server_params
from .topic_mapping import ENCODE_MODES, EXAMPLE, read_mappings

if TYPE_CHECKING:
    from .consumer import KafkaConsumer

_RESET: Final = {"reset_to_latest": "latest", "reset_to_earliest": "earliest", "reset_by_subscriber": "earliest"}
_MAX_GROUP: Final = 249


class KafkaReceiver(Receiver):
    """A member of a consumer group."""

    def __init__(self, context: ReceiverContext) -> None:
        """Raises ParamError."""
        config = context.config
        self._context = context
        self._settings = read_connection(config)
        self._group = config["group_id"] or f"taipan-{context.id}"
        if len(self._group) > _MAX_GROUP or not self._group.isprintable():
            raise ParamError("group_id", f"expected at most {_MAX_GROUP} characters")
        self._max_bytes = read_size("max_bytes", config["max_bytes"], 1024, 64 * 1024 * 1024)
        max_payload = read_size("max_payload_bytes", config["max_payload_bytes"], 1, 256 * 1024 * 1024)
        self._mappings = read_mappings(
            config["topic_mapping"], config["key_encode_mode"], config["value_encode_mode"], max_payload
        )
        self._reset = _RESET[config["offset_reset_policy"]]
        self._consumer: KafkaConsumer | None = None

    @property
    def counts(self) -> tuple[int, int]:
        consumer = self._consumer
        return (0, 0) if consumer is None else (consumer.received, consumer.refused)

    async def test(self) -> None:
        consumer = self._made()
        from .client import ERRORS, reason

        try:
            await consumer.test()
        except ERRORS as error:
            raise ResourceError(reason(error)) from None

    async def receive(self) -> None:
        consumer = self._consumer = self._consumer or self._made()
        from .client import ERRORS, reason

        try:
            await consumer.consume()
        except ERRORS as error:
            raise ResourceError(reason(error)) from None

    def _made(self) -> KafkaConsumer:
        """Return a new consumer. Raises ResourceError."""
        try:
            import aiokafka  # noqa: F401 - a node without such a resource does not need it

            from .consumer import KafkaConsumer
        except ImportError:
            raise missing("aiokafka", "kafka") from None
        context = self._context
        return KafkaConsumer(
            context.id, context.node, self._settings, self._group, self._reset, self._max_bytes, self._mappings,
            context.learn,
        )  # fmt: skip


_after: Final = 12
CONSUMER: Final = ResourceType(
    "kafka_consumer",
    Text("Kafka Consumer Group", "Kafka 消费组"),
    Text("Topics of Kafka whose records are published here", "将 Kafka 主题中的消息发布到本地"),
    receiving(KafkaReceiver),
    (
        *server_params(),
        Param("group_id", 5, "string", Text("Group", "消费组"),
              Text("The consumer group, whose members share the partitions; empty: one of this resource, with a member "
                   "on each node", "消费组；留空则使用该资源自己的消费组，每个节点一个成员"), default=""),
        Param("topic_mapping", 6, "array", Text("Topic Mapping", "主题映射"),
              Text("Objects with kafka_topic, mqtt_topic, qos (0), payload_template (${value}; empty: the whole record "
                   "as JSON) and retain (false); both templates have value, value.x, key, topic, partition, offset, "
                   "ts, ts_type and headers",
                   "对象列表：kafka_topic、mqtt_topic、qos、payload_template、retain；"
                   "模板可用 value、key、topic、partition、offset、ts、ts_type、headers"),
              required=True, default=EXAMPLE, insist=True, items={"type": "object", "schema": {}}),
        Param("key_encode_mode", 7, "string", Text("Key Encoding", "Key 编码"),
              Text("force_utf8: as it is; base64: as Base64", "force_utf8：原样；base64：Base64 编码"),
              default=ENCODE_MODES[0], enum=list(ENCODE_MODES)),
        Param("value_encode_mode", 8, "string", Text("Value Encoding", "Value 编码"),
              Text("force_utf8: as it is; base64: as Base64", "force_utf8：原样；base64：Base64 编码"),
              default=ENCODE_MODES[0], enum=list(ENCODE_MODES)),
        Param("max_bytes", 9, ["string", "number"], Text("Max Bytes", "最大字节数"),
              Text("How much is read of a partition at once; a larger record is read alone",
                   "每次从一个分区读取的字节数；更大的消息单独读取"), default="100KB"),
        Param("max_payload_bytes", 10, ["string", "number"], Text("Max Payload", "最大载荷"),
              Text("A record whose payload is larger is skipped", "载荷更大的消息将被跳过"), default="1MB"),
        Param("offset_reset_policy", 11, "string", Text("Offset Reset Policy", "偏移重置策略"),
              Text("Whether a group without an offset begins with new records or with the oldest",
                   "消费组没有偏移时的起始位置：最新或最早"),
              default="reset_to_latest", enum=list(_RESET)),
        *network_params(_after),
    ),
    connection=(*CONNECTION, "topic_mapping"),
    order=31,
)  # fmt: skip
