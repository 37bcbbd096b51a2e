"""HttpResource: what the resources behind an HTTP server share."""

import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ..allowed_networks import Networks, reason_of
from ..delivery.buffer import Buffer, DeliveryOutcome
from ..delivery.buffered_row import BufferedRow
from ..params import Param, ParamError, Text
from ..records import ResourceStatus
from .http_reply import BadRequest, HttpReply, host_and_port
from .liveness import LivenessCheck
from .resource import ResourceContext, ResourceError

if TYPE_CHECKING:
    from .http_client import HttpClient

_LIMITS: Final = ("retry_attempts", "dead_letters")


def limit_params(order: int) -> tuple[Param, ...]:
    """What a resource may have of its own instead of the node's; numbered from ``order``."""
    return (
        Param("retry_attempts", order, "number", Text("Attempts", "尝试次数"),
              Text("How often a row is tried that the server answers with an error of its own (HTTP 500); then it is "
                   "set aside. Without: ruleengine.retry_attempts", "服务器以 HTTP 500 应答的数据的尝试次数"),
              range=(1, 1000)),
        Param("dead_letters", order + 1, "number", Text("Dead Letters", "死信数"),
              Text("How many rows that were set aside are kept, to be seen and sent again; 0: none. Without: "
                   "ruleengine.dead_letters", "保留的死信条数;0 则不保留"), range=(0, 100_000)),
    )  # fmt: skip


class HttpResource(ABC):
    """A buffer with ``pool_size`` lanes before a client with as many connections, and a watch on the server."""

    def __init__(
        self,
        context: ResourceContext,
        url: str,
        connect_timeout: float,
        response_timeout: float,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        keep_open: bool = True,
    ) -> None:
        """``url``: of http or https, with a host. Timeouts are in seconds. Raises ParamError."""
        pool_size = context.config["pool_size"]
        if not isinstance(pool_size, int):
            raise ParamError("pool_size", "expected a whole number")
        limits: dict[str, int] = {
            name: context.config[name] for name in _LIMITS if context.config.get(name) is not None
        }
        for name, limit in limits.items():
            if not isinstance(limit, int):
                raise ParamError(name, "expected a whole number")
        node = context.node
        self.pool_size = pool_size
        self._host, self._port = host_and_port(url)
        self._connect_timeout = connect_timeout
        self._response_timeout = response_timeout
        self._tls = tls
        self._server_hostname = server_hostname
        self._keep_open = keep_open
        self._settings = node.settings
        self._networks = Networks(self._settings.refused_networks)
        self._node = node.node
        self._clock = node.clock
        self._client: HttpClient | None = None
        self._on_alive = context.on_alive
        self._liveness = LivenessCheck(context.id, self._probe, self._settings.liveness_interval, self._changed)
        self.buffer = Buffer(
            context.id,
            node.buffers,
            self._settings,
            self,
            pool_size,
            node.rng,
            now=self._clock.now,
            limits=limits,
        )

    @property
    def alive(self) -> bool:
        return self._liveness.alive

    @property
    def status(self) -> ResourceStatus:
        return ResourceStatus(
            node=self._node, is_alive=self.alive, reason=self._liveness.reason, buffer=self.buffer.status
        )

    def start(self) -> None:
        from .http_client import HttpClient  # here: a node without such a resource needs no aiohttp

        self._client = HttpClient(
            self._networks,
            self.pool_size,
            self._connect_timeout,
            self._response_timeout,
            self._settings.max_reply_bytes,
            self._tls,
            self._server_hostname,
            self._keep_open,
        )
        self._liveness.start()
        self.buffer.start()

    async def test(self) -> None:
        try:
            await self._probe()
        except OSError as error:
            raise ResourceError(reason_of(error)) from None

    async def close(self) -> None:
        await self._liveness.close()
        await self.buffer.close()
        if self._client is not None:
            await self._client.close()

    @abstractmethod
    async def deliver(self, lane: int, batch: list[BufferedRow]) -> list[DeliveryOutcome]:
        """As the buffer's ``Sink``."""

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> HttpReply | DeliveryOutcome:
        """The server's answer; a DeliveryOutcome where there is none."""
        assert self._client is not None
        try:
            reply = await self._client.send(method, url, headers, body)
        except BadRequest as error:
            return DeliveryOutcome(str(error))
        except ResourceError as error:
            return DeliveryOutcome(str(error), retry=True, unreachable=True)
        self._liveness.learn()
        return reply

    async def _probe(self) -> None:
        timeout = self._settings.liveness_timeout
        await self._networks.probe(self._host, self._port, timeout, self._tls, self._server_hostname)

    def _changed(self, alive: bool) -> None:
        if alive:
            self.buffer.retry_now()
        self._on_alive(alive)
