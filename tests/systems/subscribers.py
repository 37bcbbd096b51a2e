"""The databases of actions that subscribe clients, and keep messages for them: EMQX's tables and keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from tests.support.api import ManagedNode
from tests.systems.servers.mariadb import MariaDb
from tests.systems.servers.postgresql import Postgresql
from tests.systems.servers.process import ServerProcess
from tests.systems.servers.redis import RedisServer
from tests.systems.servers.redis_groups import RedisClusterServers


class Database(ABC):
    """A server that runs, with EMQX's tables, which are empty."""

    resource: ClassVar[str]
    lookup: ClassVar[str]
    refused: ClassVar[str]
    """What the database says once ``spoil`` was called."""
    server: ServerProcess

    @abstractmethod
    def config(self) -> dict[str, Any]: ...

    @abstractmethod
    def put(self, client_id: str, filters: dict[str, int]) -> None:
        """Store subscriptions of a client."""

    @abstractmethod
    def spoil(self, client_id: str) -> None:
        """Make the query for this client fail."""

    @abstractmethod
    def repair(self, client_id: str) -> None: ...

    async def create(self, node: ManagedNode, **config: Any) -> None:
        reply = await node.api.post(
            "/resources", {"id": "resource:db", "type": self.resource, "config": {**self.config(), **config}}
        )
        assert reply.code == 0, reply.text

    async def look_up(self, node: ManagedNode) -> None:
        """Create the resource, and the rule that looks up subscriptions."""
        await self.create(node)
        rule = {
            "id": "rule:lookup",
            "rawsql": 'SELECT * FROM "$events/client_connected"',
            "actions": [{"name": self.lookup, "params": {"$resource": "resource:db"}}],
        }
        reply = await node.api.post("/rules", rule)
        assert reply.code == 0, reply.text


def _quoted(text: str) -> str:
    """A text in hexadecimal, which needs no quotes."""
    return text.encode().hex()


class PostgresqlDatabase(Database):
    resource, lookup, refused = "backend_pgsql", "lookup_sub_to_pgsql", "does not exist"
    server: Postgresql

    def __init__(self, server: Postgresql) -> None:
        self.server = server
        server.query(
            "create table mqtt_sub(id serial primary key, clientid character varying(64), topic character varying(180),"
            " qos integer, unique(clientid, topic)); grant all on mqtt_sub to taipan"
        )

    def config(self) -> dict[str, Any]:
        server = self.server
        return {
            "server": server.address,
            "username": server.user,
            "password": server.password,
            "database": server.database,
        }

    def put(self, client_id: str, filters: dict[str, int]) -> None:
        rows = ", ".join(f"({_text(client_id)}, {_text(topic)}, {qos})" for topic, qos in filters.items())
        self.server.query(f"insert into mqtt_sub(clientid, topic, qos) values {rows}")

    def spoil(self, client_id: str) -> None:
        self.server.query("alter table mqtt_sub rename to other")

    def repair(self, client_id: str) -> None:
        self.server.query("alter table other rename to mqtt_sub")


def _text(text: str) -> str:
    return f"convert_from('\\x{_quoted(text)}', 'UTF8')"


class MysqlDatabase(Database):
    resource, lookup, refused = "backend_mysql", "lookup_sub_to_mysql", "doesn't exist"
    server: MariaDb

    def __init__(self, server: MariaDb) -> None:
        self.server = server
        server.query(
            "create table mqtt_sub(id int(11) unsigned not null auto_increment, clientid varchar(64) default null,"
            " topic varchar(180) default null, qos tinyint(1) default null, primary key (id),"
            " unique key mqtt_sub_key (clientid, topic)) engine=InnoDB default charset=utf8mb4"
        )

    def config(self) -> dict[str, Any]:
        server = self.server
        return {
            "server": server.address,
            "user": server.user,
            "password": server.password,
            "database": server.database,
        }

    def put(self, client_id: str, filters: dict[str, int]) -> None:
        rows = ", ".join(f"(X'{_quoted(client_id)}', X'{_quoted(topic)}', {qos})" for topic, qos in filters.items())
        self.server.query(f"insert into mqtt_sub(clientid, topic, qos) values {rows}")

    def spoil(self, client_id: str) -> None:
        self.server.query("rename table mqtt_sub to other")

    def repair(self, client_id: str) -> None:
        self.server.query("rename table other to mqtt_sub")


class RedisDatabase(Database):
    resource, lookup, refused = "backend_redis_single", "lookup_sub_to_redis", "WRONGTYPE"
    server: RedisServer

    def __init__(self, server: RedisServer) -> None:
        self.server = server

    def config(self) -> dict[str, Any]:
        return {"server": self.server.address, "password": self.server.password}

    def say(self, commands: list[list[str]]) -> None:
        self.server.say_all(commands)

    def put(self, client_id: str, filters: dict[str, int]) -> None:
        self.say([["HSET", f"mqtt:sub:{client_id}", topic, str(qos)] for topic, qos in filters.items()])

    def spoil(self, client_id: str) -> None:
        self.say([["SET", f"mqtt:sub:{client_id}", "x"]])

    def repair(self, client_id: str) -> None:
        self.say([["DEL", f"mqtt:sub:{client_id}"]])


class RedisClusterDatabase(RedisDatabase):
    resource = "backend_redis_cluster"

    def __init__(self, cluster: RedisClusterServers) -> None:
        super().__init__(cluster.servers[0])
        self.cluster = cluster

    def config(self) -> dict[str, Any]:
        return {"servers": self.cluster.address, "password": self.server.password}

    def say(self, commands: list[list[str]]) -> None:
        for words in commands:
            self.cluster.of(words[1]).say_all([words])
