"""KafkaConnectionSettings: how to reach a Kafka cluster, and the parameters for it. Needs no library of Kafka."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...network.tls import asked_name, client_context, tls_params
from ...params import Param, ParamError, Text, read_duration

_PORT: Final = 9092
_MAX_SERVERS: Final = 100
_SIZE: Final = re.compile(r"([0-9]{1,12})\s*(B|KB|MB|GB)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3}
_MECHANISMS: Final[dict[str, str | None]] = {
    "NONE": None,
    "PLAIN": "PLAIN",
    "SCRAM_SHA_256": "SCRAM-SHA-256",
    "SCRAM_SHA_512": "SCRAM-SHA-512",
}
_TLS: Final = tls_params(0)


class KafkaConnectionSettings(NamedTuple):
    """``servers`` are (host, port); ``mechanism`` is that of SASL, None: without a login. Times are seconds,
    ``send_buffer`` is in bytes; 0: the choice of the operating system. ``keepalive`` 0: none."""

    servers: tuple[tuple[str, int], ...]
    mechanism: str | None
    username: str
    password: str
    tls: ssl.SSLContext | None
    server_name: str | None
    connect_timeout: float
    request_timeout: float
    send_buffer: int
    keepalive: int


def read_connection(config: Mapping[str, Any]) -> KafkaConnectionSettings:
    """Return the settings of a resource. Raises ParamError."""
    mechanism = _MECHANISMS[config["authentication_mechanism"]]
    for name in ("username", "password"):
        if "\0" in config[name]:
            raise ParamError(name, "cannot contain a null character")
        if mechanism is not None and not config[name]:
            raise ParamError(name, f"required for {config['authentication_mechanism']}")
    if not config["query_api_versions"]:
        raise ParamError(
            "query_api_versions", "false is for Kafka before 0.10, which Taipan does not support; leave it true"
        )
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    if config["ssl"]:
        tls, server_name = client_context(config), asked_name(config)
    return KafkaConnectionSettings(
        _servers(config["servers"]),
        mechanism,
        config["username"],
        config["password"],
        tls,
        server_name,
        read_duration("connect_timeout", config["connect_timeout"]),
        read_duration("request_timeout", config["request_timeout"]),
        read_size("send_buffer", config["send_buffer"], 0, 2**30),
        int(read_duration("tcp_keepalive", config["tcp_keepalive"], 0, 32_767)),
    )


def read_size(key: str, value: str | float, least: int, most: int) -> int:
    """Return the bytes of a size in EMQX's form: ``900KB``, ``1MB``. Raises ParamError."""
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ParamError(key, "expected a size such as 900KB or 1MB")
    size = int(match[1]) * _UNITS[(match[2] or "").lower()]
    if not least <= size <= most:
        raise ParamError(key, f"expected {least} to {most} bytes")
    return size


def _servers(text: str) -> tuple[tuple[str, int], ...]:
    found = [_server(each.strip()) for each in text.split(",") if each.strip()]
    if not 0 < len(found) <= _MAX_SERVERS:
        raise ParamError("servers", f"expected 1 to {_MAX_SERVERS} servers as host:port, separated by commas")
    return tuple(found)


def _server(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(_PORT)
    host = host.strip("[]")
    right = port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65_536
    if not right or not host or not host.isascii() or not host.isprintable() or set(" /@") & set(host):
        raise ParamError("servers", "expected host:port; separate several servers with commas")
    return host, int(port)


def server_params() -> tuple[Param, ...]:
    """Return the parameters of the cluster and the login; numbered from 1 to 4."""
    return (
        Param("servers", 1, "string", Text("Servers", "服务器"),
              Text("host:port of one or several brokers of the cluster, separated by commas",
                   "集群中一个或多个节点的 host:port，以逗号分隔"),
              required=True, default="127.0.0.1:9092"),
        Param("authentication_mechanism", 2, "string", Text("Authentication", "认证机制"),
              Text("The SASL mechanism; NONE: no authentication", "SASL 认证机制；NONE 则不认证"),
              default="NONE", enum=list(_MECHANISMS)),
        Param("username", 3, "string", Text("Username", "用户名"), Text("The user to log in as", "登录用户名"),
              default=""),
        Param("password", 4, "password", Text("Password", "密码"), Text("The user's password", "用户的密码"),
              default=""),
    )  # fmt: skip


def network_params(order: int) -> tuple[Param, ...]:
    """Return the parameters of the connections, with those of TLS; numbered from ``order``."""
    tls = tls_params(order + 4)
    return (
        Param("send_buffer", order, ["string", "number"], Text("Send Buffer", "发送缓冲区"),
              Text("The send buffer of each socket; 0: the operating system decides",
                   "每个套接字的发送缓冲区大小；0 则由操作系统决定"), default="1024KB"),
        Param("tcp_keepalive", order + 1, "string", Text("TCP Keepalive", "TCP Keepalive"),
              Text("Idle time after which TCP checks a connection; 0s: never",
                   "TCP 在连接空闲多久后进行检测；0s 则不检测"), default="0s"),
        Param("query_api_versions", order + 2, "boolean", Text("Query API Versions", "查询 API 版本"),
              Text("Ask the broker for its protocol versions. Must be true: "
                   "all brokers since Kafka 0.10 answer",
                   "查询协议版本；不支持 false"), default=True),
        Param("ssl", order + 3, "boolean", Text("TLS", "TLS"), Text("Connect by TLS", "使用 TLS 连接"), default=False),
        *tls,
        Param("connect_timeout", order + 4 + len(tls), "string", Text("Connect Timeout", "连接超时"),
              Text("Time limit for connecting and logging in", "连接并登录的最长时间"), default="5s"),
        Param("request_timeout", order + 5 + len(tls), "string", Text("Request Timeout", "请求超时"),
              Text("Time limit for one request", "单个请求的最长时间"), default="30s"),
    )  # fmt: skip


CONNECTION: Final = (
    "servers", "authentication_mechanism", "username", "password", "ssl", *(each.name for each in _TLS),
)  # fmt: skip
"""The parameters that decide whether the cluster can be reached."""
