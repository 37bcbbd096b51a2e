"""BatchSink: an HTTP sink whose rows share a request; a row that the server refuses does not stop the others."""

from __future__ import annotations

import base64
import ssl
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from ..delivery.buffer import DeliveryOutcome
from ..delivery.buffered_row import BufferedRow
from ..network.tls import asked_name, client_context, tls_params
from ..params import Param, ParamError, Text, read_duration
from .batch_division import BatchAnswer, written_in_parts
from .http_reply import HttpReply, outcome_of
from .http_sink import HttpSink
from .resource import ResourceError
from .sink import SinkContext, limit_params

_VERSIONS: Final = {
    "tlsv1.3": ssl.TLSVersion.TLSv1_3,
    "tlsv1.2": ssl.TLSVersion.TLSv1_2,
}
_SHOWN: Final = 300


class BatchSink(HttpSink):
    """Sends batches. If a batch was refused, each half is sent separately, until only the invalid rows are left, which
    become dead letters."""

    def __init__(self, context: SinkContext, url: str) -> None:
        """``url``: an http or https URL with a host. Raises ParamError."""
        config = context.config
        tls = None
        if url.startswith("https:"):
            tls = client_context(config)
            tls.minimum_version = _VERSIONS[config.get("tls_version", "tlsv1.2")]
        super().__init__(
            context,
            url,
            read_duration("connect_timeout", config["connect_timeout"]),
            read_duration("request_timeout", config["request_timeout"]),
            tls,
            asked_name(config),
        )

    @abstractmethod
    async def send(self, rows: list[BufferedRow]) -> BatchAnswer:
        """Send rows in one request."""

    @abstractmethod
    async def ask(self) -> BatchAnswer:
        """Send a request that writes nothing, but needs the credentials."""

    async def test(self) -> None:
        outcome = (await self.ask()).outcome
        if outcome.reason:
            raise ResourceError(outcome.reason)

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        return await written_in_parts(len(rows), lambda start, end: self.send(rows[start:end]))


def waits(reason: str) -> DeliveryOutcome:
    """Return the outcome for rows that were not refused: they wait until the server or its configuration changes."""
    return DeliveryOutcome(reason[:_SHOWN], retry=True, unreachable=True)


def of_status(reply: HttpReply, dividing: frozenset[int]) -> BatchAnswer:
    """Return what the status means: ``dividing`` are those for data that the server does not accept. With credentials
    that it does not accept, or without the database, rows wait."""
    outcome = outcome_of(reply)
    if reply.status in (401, 403, 404):
        return BatchAnswer(waits(outcome.reason))
    return BatchAnswer(outcome, reply.status in dividing)


def basic_authorization(key: str, user: str, password: str) -> dict[str, str]:
    """Return the header for a user; none for an empty name. Raises ParamError for ``key``."""
    if not user:
        return {}
    if ":" in user:
        raise ParamError(key, "a username cannot contain a colon")
    encoded = base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogatepass")).decode()
    return {"authorization": f"Basic {encoded}"}


def origin_of(config: Mapping[str, Any]) -> str:
    """Return the URL of ``host``, ``port`` and ``https_enabled``, without a path. Raises ParamError."""
    host, port = config["host"].strip(), config["port"]
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    if not host or not host.isascii() or not host.isprintable() or set(" /@?#\\%") & set(host):
        raise ParamError("host", "expected a hostname or an IP address")
    if not isinstance(port, int):
        raise ParamError("port", "expected a whole number")
    return f"{'https://' if config.get('https_enabled') else 'http://'}{host}:{port}"


def address_params(port: int) -> tuple[Param, ...]:
    """Return ``host`` and ``port``; numbered 1 and 2."""
    return (
        Param("host", 1, "string", Text("Host", "主机"), Text("Hostname or IP address", "主机名或 IP 地址"),
              required=True, default="127.0.0.1", insist=True),
        Param("port", 2, "number", Text("Port", "端口"), Text("Port of the HTTP interface", "HTTP 接口的端口"),
              default=port, range=(1, 65_535)),
    )  # fmt: skip


def https_params(order: int) -> tuple[Param, ...]:
    """Return ``https_enabled`` and the TLS parameters, numbered from ``order``."""
    return (
        Param("https_enabled", order, "boolean", Text("HTTPS", "启用 HTTPS"),
              Text("Connect by HTTPS", "使用 HTTPS 连接"), default=False),
        Param("tls_version", order + 1, "string", Text("TLS Version", "TLS 版本"),
              Text("The lowest TLS version that is accepted", "允许的最低 TLS 版本"),
              default="tlsv1.2", enum=list(_VERSIONS)),
        *tls_params(order + 2),
    )  # fmt: skip


def request_params(order: int, pool_size: int) -> tuple[Param, ...]:
    """Return ``pool_size``, the time limits of a request, and the limits of the buffer; numbered from ``order``."""
    return (
        Param("pool_size", order, "number", Text("Pool Size", "连接池大小"),
              Text("Concurrent requests", "同时进行的请求数"), default=pool_size, range=(1, 256)),
        Param("connect_timeout", order + 1, "string", Text("Connect Timeout", "连接超时"),
              Text("Time limit for opening a connection", "建立连接的最长时间"), default="5s"),
        Param("request_timeout", order + 2, "string", Text("Request Timeout", "请求超时"),
              Text("Time limit for the answer to a request", "等待响应的最长时间"), default="30s"),
        *limit_params(order + 3),
    )  # fmt: skip
