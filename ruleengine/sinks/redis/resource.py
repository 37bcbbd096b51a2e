"""The resource types of Redis: to each, rules send a command for each row."""

from __future__ import annotations

from typing import Final

from ...network.tls import tls_params
from ...params import Param, Text
from ...resources.lane_connections import lane_params
from ...resources.resource import ResourceType
from ...resources.sink import buffered
from .cluster import RedisCluster
from .one_server import RedisSentinel, RedisSingle

_DATABASES: Final = 1_000_000


def _redis_params(*first: Param, reconnects: bool = True) -> tuple[Param, ...]:
    """Return the parameters of a type; ``first`` are those of its own."""
    order = len(first) + 1
    return (
        *first,
        Param("database", order, "number", Text("Database", "数据库"),
              Text("The number of the database", "数据库编号"), default=0, range=(0, _DATABASES)),
        Param("username", order + 1, "string", Text("Username", "用户名"),
              Text("A user of the ACL of Redis 6; empty: the default user", "Redis 6 ACL 的用户，留空为默认用户"),
              default=""),
        Param("password", order + 2, "password", Text("Password", "密码"),
              Text("The user's password", "用户的密码"), default=""),
        *lane_params(order + 3, Text("Time limit for the commands of a batch", "一批命令的最长时间"), reconnects),
    )  # fmt: skip


_LOGIN: Final = ("database", "username", "password", "ssl", *(each.name for each in tls_params(0)))
_SERVERS: Final = Text("host:port, several with commas", "host:port，多个以逗号分隔")

SINGLE: Final = ResourceType(
    "backend_redis_single",
    Text("Redis single", "Redis 单节点"),
    Text("A Redis or Valkey server", "Redis 或 Valkey 服务器"),
    buffered(RedisSingle),
    _redis_params(
        Param("server", 1, "string", Text("Server", "服务器"), Text("host:port", "host:port"),
              required=True, default="127.0.0.1:6379"),
    ),
    connection=("server", *_LOGIN),
    order=23,
)  # fmt: skip
SENTINEL: Final = ResourceType(
    "backend_redis_sentinel",
    Text("Redis Sentinel", "Redis 哨兵"),
    Text("The master that Redis Sentinel names", "由 Redis Sentinel 指定的主节点"),
    buffered(RedisSentinel),
    _redis_params(
        Param("servers", 1, "string", Text("Sentinels", "哨兵"), _SERVERS,
              required=True, default="127.0.0.1:26379"),
        Param("sentinel", 2, "string", Text("Master Name", "主节点名称"),
              Text("The name of the master in the configuration of the sentinels", "哨兵配置中的主节点名称"),
              required=True, default="mymaster"),
    ),
    connection=("servers", "sentinel", *_LOGIN),
    order=24,
)  # fmt: skip
CLUSTER: Final = ResourceType(
    "backend_redis_cluster",
    Text("Redis Cluster", "Redis 集群"),
    Text("A Redis or Valkey cluster", "Redis 或 Valkey 集群"),
    buffered(RedisCluster),
    _redis_params(
        Param("servers", 1, "string", Text("Servers", "服务器"), _SERVERS, required=True, default="127.0.0.1:6379"),
        reconnects=False,
    ),
    connection=("servers", *_LOGIN),
    order=25,
)  # fmt: skip
RESOURCES: Final = (SINGLE, SENTINEL, CLUSTER)
