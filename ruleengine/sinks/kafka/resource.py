"""The resource type ``bridge_kafka``: a Kafka cluster into whose topics rules write records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...delivery.buffer import DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from ...network.allowed_networks import Networks
from ...params import Param, Text, read_duration
from ...resources.lane_connections import missing
from ...resources.resource import ResourceError, ResourceType
from ...resources.sink import Sink, SinkContext, buffered, limit_params
from .connection import CONNECTION, network_params, read_connection, read_size, server_params
from .consumer_resource import CONSUMER

if TYPE_CHECKING:
    from .client import KafkaClient
    from .producer import KafkaProducer

_CODECS: Final = {"no_compression": 0, "gzip": 1, "snappy": 2}
_SNAPPY: Final = 2
_MIN_BATCH: Final = 1024
_MAX_BATCH: Final = 64 * 1024 * 1024


class Kafka(Sink):
    """A Kafka cluster, with one connection to each of its brokers."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        config = context.config
        self._settings = read_connection(config)
        self._compression = _CODECS[config["compression"]]
        self._max_batch_bytes = read_size("max_batch_bytes", config["max_batch_bytes"], _MIN_BATCH, _MAX_BATCH)
        self._idempotent: bool = config["idempotence"]
        self.sync_timeout = read_duration("sync_timeout", config["sync_timeout"])
        self._metadata_interval = read_duration(
            "min_metadata_refresh_interval", config["min_metadata_refresh_interval"]
        )
        self._networks = Networks(context.node.settings.refused_networks)
        self._client: KafkaClient | None = None
        self._producer: KafkaProducer | None = None

    async def connect(self) -> None:
        try:
            import aiokafka  # noqa: F401 - a node without such a resource does not need it
            from aiokafka.codec import has_snappy

            from .client import ERRORS, KafkaClient, reason
            from .producer import KafkaProducer
        except ImportError:
            raise missing("aiokafka", "kafka") from None
        if self._compression == _SNAPPY and not has_snappy():
            raise missing("cramjam", "kafka")
        if self._client is None:
            client = self._client = KafkaClient(self._settings, self._networks)
            # The producer is kept when the client reconnects: with another identity, it would write a batch twice.
            self._producer = KafkaProducer(
                client,
                self._compression,
                self._max_batch_bytes,
                self._settings.request_timeout,
                self._idempotent,
                self._metadata_interval,
            )
        try:
            await self._client.bootstrap()
        except ERRORS as error:
            raise ResourceError(reason(error)) from None

    async def test(self) -> None:
        from .client import ERRORS, reason

        assert self._client is not None
        try:
            await self._client.ping()
        except ERRORS as error:
            raise ResourceError(reason(error)) from None

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        from .client import ERRORS, reason

        assert self._producer is not None
        try:
            return await self._producer.write(rows)
        except ERRORS as error:
            raise ResourceError(reason(error)) from None

    async def close(self) -> None:
        client, self._client, self._producer = self._client, None, None
        if client is not None:
            await client.close()


_network = network_params(10)
_after = 10 + len(_network) + 1
TYPE: Final = ResourceType(
    "bridge_kafka",
    Text("Kafka", "Kafka"),
    Text("A Kafka cluster into whose topics records are written", "写入消息的 Kafka 集群"),
    buffered(Kafka),
    (
        *server_params(),
        Param("compression", 5, "string", Text("Compression", "压缩"),
              Text("How batches are compressed", "消息批次的压缩方式"),
              default="no_compression", enum=list(_CODECS)),
        Param("max_batch_bytes", 6, ["string", "number"], Text("Max Batch Bytes", "最大批量字节数"),
              Text("The largest batch for one partition, before compression; Kafka's own limit is message.max.bytes",
                   "单个分区批次压缩前的最大字节数"), default="900KB"),
        Param("sync_timeout", 7, "string", Text("Sync Timeout", "同步超时"),
              Text("After this time, a row of an action with the type sync fails, and the fallbacks run",
                   "同步动作的超时，超过后失败并执行备选动作"), default="3s"),
        Param("idempotence", 8, "boolean", Text("Idempotence", "幂等"),
              Text("A batch whose answer was lost is written once; only with required_acks all_isr",
                   "应答丢失的批次只写入一次；仅用于 all_isr"), default=False),
        Param("min_metadata_refresh_interval", 9, "string", Text("Metadata Refresh", "元数据刷新间隔"),
              Text("The shortest time between two questions for the leaders of partitions after errors",
                   "出错后两次查询分区元数据的最短间隔"), default="3s"),
        *_network,
        *limit_params(_after),
    ),
    connection=CONNECTION,
    order=30,
)  # fmt: skip
RESOURCES: Final = (TYPE, CONSUMER)
