"""A storm of logins against a database: CLIENTS (10,000) users connect at once to a node that has just started.

``python -m tools.bench.database_logins [postgresql|mysql|redis] [CONDITION ...]`` starts the database on loopback as
the tests do, and prints a row for each condition: ``answers``; ``restarts`` (the database is killed after a quarter of
the logins and starts again); ``slow`` (a relay delays both ways by 10 ms); and ``away`` (for ten seconds or longer,
until there were as many refusals as clients; none may be accepted, and seconds count from its return). The source of
access has its default settings. A client that is refused, or has waited PATIENCE (60) seconds, tries again half a
second to one and a half seconds later.
"""

import asyncio
import hashlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.node import free_port
from tests.systems.servers.mariadb import MariaDb
from tests.systems.servers.postgresql import Postgresql
from tests.systems.servers.redis import RedisServer
from tools.bench.brokers import raise_file_limit
from tools.bench.passwords import Crowd, Node, processor
from tools.bench.results import commit, modules

CONDITIONS: Final = ("answers", "restarts", "slow", "away")
DELAY: Final = 0.02
"""Seconds that the relay adds to a query and its answer."""
AWAY: Final = 10.0
"""Seconds of the storm while no database answers."""
HASH: Final = "salt,sha256"

Server = Postgresql | MariaDb | RedisServer


class Relay:
    """Passes on bytes between the node and the database, each way ``delay`` seconds later."""

    def __init__(self, port: int, delay: float) -> None:
        self._to = port
        self._delay = delay
        self.port = free_port()
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self) -> None:
        """Accept connections until the process ends."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            away, back = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        for source, target in ((reader, back), (away, writer)):
            task = asyncio.create_task(self._pass_on(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await source.read(65536):
                loop.call_later(self._delay, target.write, data)
        loop.call_later(self._delay, target.close)


def users(count: int) -> list[tuple[str, str, str, str]]:
    """Return name, password, salt and hash of each user."""
    made = []
    for number in range(count):
        password, salt = f"pass {number}", f"{number:08}"
        made.append((f"u{number}", password, salt, hashlib.sha256((salt + password).encode()).hexdigest()))
    return made


def started(name: str, count: int) -> tuple[Server, dict[str, str], str]:
    """Return a server with these users, their passwords by name, and the table of the source without ``server``."""
    everyone = users(count)
    passwords = {user: password for user, password, _, _ in everyone}
    login = ""
    server: Server
    if name == "redis":
        server = RedisServer()
        server.start()
        server.say_all(
            [["HSET", f"mqtt_user:{user}", "password", made, "salt", salt] for user, _, salt, made in everyone]
        )
        query = 'auth_cmd = "HMGET mqtt_user:%u password salt"'
    else:
        from tests.broker.access.sources import mysql, postgresql

        server = Postgresql() if name == "postgresql" else MariaDb()
        tables = (postgresql if name == "postgresql" else mysql).TABLES
        server.start()
        unique = "create unique index on mqtt_user (username);" if name == "postgresql" else ""
        indexes = "create index acl_username on mqtt_acl (username); create index acl_clientid on mqtt_acl (clientid);"
        rows = ",".join(f"('{user}', '{made}', '{salt}')" for user, _, salt, made in everyone)
        server.query(f"{tables} {unique} {indexes} insert into mqtt_user (username, password, salt) values {rows}")
        login = f'username = "{server.user}"\ndatabase = "{server.database}"\n'
        query = "auth_query = \"select password, salt from mqtt_user where username = '%u' limit 1\""
    return server, passwords, f'{login}password = "{server.password}"\npassword_hash = "{HASH}"\n{query}\n'


@asynccontextmanager
async def node_of(name: str, port: int, table: str) -> AsyncIterator[Node]:
    more = f'[zones.external]\nallow_anonymous = false\n[access.{name}]\nserver = "127.0.0.1:{port}"\n{table}'
    with tempfile.TemporaryDirectory(prefix="taipan-logins-") as directory:
        node = Node(Path(directory), more)
        try:
            await node.start()
            await node.ready()
            yield node
        finally:
            await node.stop()


@dataclass(frozen=True)
class Found:
    """``back``: seconds until each client was accepted, sorted; while the database is away, counted from its return.
    ``told``: other answers to clients. ``reasons``: failures of the source by reason. ``used``: processor seconds of
    the node. ``accepted_while_away``: how many clients."""

    back: list[float]
    told: Counter[str]
    reasons: dict[str, int]
    used: float
    accepted_while_away: int = 0

    def row(self, title: str) -> str:
        last, half, most = (self.back[(len(self.back) - 1) * part // 100] for part in (100, 50, 99))
        told = ", ".join(f"{count:,} x {what}" for what, count in self.told.most_common()) or "none"
        why = ", ".join(f"{count:,} x {reason}" for reason, count in self.reasons.items()) or "none"
        return f"| {title} | {last:.1f} s | {half:.1f} s | {most:.1f} s | {told} | {why} | {self.used:.1f} s |"


async def measure(name: str, condition: str, server: Server, passwords: dict[str, str], table: str) -> Found:
    relay = Relay(server.port, DELAY / 2)
    port = relay.port if condition == "slow" else server.port
    process = multiprocessing.get_context("spawn").Process(target=relay.serve, daemon=True)
    if condition == "slow":
        process.start()  # of its own: this loop is busy with the clients
    if condition == "away":
        server.stop()
    async with node_of(name, port, table) as node:
        used = node.processor_seconds()
        crowd = Crowd(node, passwords, float(os.environ.get("PATIENCE", "60")))
        begun = time.perf_counter()
        coming = asyncio.create_task(crowd.come())
        returned, accepted = 0.0, 0
        if condition == "away":
            await asyncio.sleep(AWAY)
            while crowd.told.total() < len(passwords):
                await asyncio.sleep(0.01)
            accepted = len(crowd.back)
            await asyncio.to_thread(server.start)
            returned = time.perf_counter() - begun
        elif condition == "restarts":
            while len(crowd.back) < len(passwords) // 4:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await coming
        used = node.processor_seconds() - used
        reasons = await node.failures(name)
        crowd.leave()
    if condition == "slow":
        process.kill()
        process.join()
    told = Counter({what: count for what, count in crowd.told.items() if what != "accepted"})
    return Found(sorted(each - returned for each in crowd.back), told, reasons, used, accepted)


def main() -> int:
    raise_file_limit()
    words = sys.argv[1:]
    count = int(os.environ.get("CLIENTS", "10000"))
    names = [word for word in words if word not in CONDITIONS] or ["postgresql"]
    conditions = [word for word in words if word in CONDITIONS] or list(CONDITIONS)
    print(f"On {processor()} (load {os.getloadavg()[0]:.0f} before), {modules()}, commit {commit()}, {count:,} clients")
    print("| Database | Last CONNACK 0 | p50 | p99 | Other answers | Failures | Processor time of the node |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        server, passwords, table = started(name, count)
        try:
            for condition in conditions:
                found = asyncio.run(measure(name, condition, server, passwords, table))
                print(found.row(f"{name}, {condition}"), flush=True)
                if found.accepted_while_away:
                    print(f"{found.accepted_while_away} clients were accepted while the database was away")
                    return 1
                if not server.runs:
                    server.start()
        finally:
            server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
