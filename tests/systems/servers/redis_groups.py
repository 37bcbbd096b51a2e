"""Several Redis servers: a cluster of three masters, and a master with a replica and a sentinel."""

from __future__ import annotations

import contextlib
import time

import redis
from redis.crc import key_slot

from tests.support.cutting_proxy import CuttingProxy
from tests.support.node import free_port
from tests.support.patience import patience

from .redis import RedisServer

MASTER_NAME = "mymaster"
_SLOTS = 16_384
_START = 30.0


class RedisClusterServers:
    """Three masters, each with a third of the slots. ``proxies``: how clients reach them."""

    def __init__(self) -> None:
        self.servers = [RedisServer() for _ in range(3)]
        self.proxies = [CuttingProxy(each.port) for each in self.servers]
        for each, proxy in zip(self.servers, self.proxies, strict=True):
            each.settings |= {
                "cluster-enabled": "yes", "cluster-port": str(free_port()), "cluster-node-timeout": "2000",
                "cluster-announce-port": str(proxy.port),
            }  # fmt: skip
        self._joined = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.proxies[0].port}"

    def start(self) -> None:
        for each in self.servers:
            if not each.runs:
                each.start()
        if not self._joined:
            self._joined = True
            bounds = [_SLOTS * number // 3 for number in range(4)]
            for number, each in enumerate(self.servers):
                each.say("CLUSTER", "ADDSLOTSRANGE", str(bounds[number]), str(bounds[number + 1] - 1))
                bus = self.servers[0].settings["cluster-port"]
                if number:
                    each.say("CLUSTER", "MEET", "127.0.0.1", str(self.servers[0].port), bus)
        end = time.monotonic() + patience(_START)
        while not all("cluster_state:ok" in each.tell("CLUSTER", "INFO") for each in self.servers):
            assert time.monotonic() < end, "the cluster is not complete"
            time.sleep(0.05)

    def of(self, key: str) -> RedisServer:
        """The master that has a key."""
        slot = key_slot(key.encode())
        return next(each for number, each in enumerate(self.servers, 1) if slot < _SLOTS * number // 3)

    def flush(self) -> None:
        for each in self.servers:
            each.say("FLUSHALL")

    def close(self) -> None:
        for each in self.servers:
            each.close()


class RedisSentinelServer(RedisServer):
    """A sentinel that watches the master at ``port``. It wants no password."""

    password = ""

    def __init__(self, port: int, password: str) -> None:
        self._master_port = port
        self._master_password = password
        super().__init__()

    def prepare(self) -> None:
        file = self.directory / "sentinel.conf"
        file.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\n"
            f"sentinel monitor {MASTER_NAME} 127.0.0.1 {self._master_port} 1\n"
            f"sentinel auth-pass {MASTER_NAME} {self._master_password}\n"
            f"sentinel down-after-milliseconds {MASTER_NAME} 500\n"
            f"sentinel failover-timeout {MASTER_NAME} 2000\n"
        )
        self.own(file, 0o600)

    def command(self) -> list[str]:
        return [self._server, str(self.directory / "sentinel.conf"), "--sentinel"]

    def ready(self) -> bool:
        return True

    @property
    def master(self) -> dict[str, str]:
        """What it knows of the master."""
        answer = self.tell("SENTINEL", "MASTER", MASTER_NAME)
        return dict(zip(answer[::2], answer[1::2], strict=True))

    def fail_over(self) -> None:
        """Until another server is the master. It may have begun by itself, and refuses while one is under way."""
        before = self.master["port"]
        end = time.monotonic() + patience(_START)
        while self.master["port"] == before:
            assert time.monotonic() < end, "no other master"
            with contextlib.suppress(redis.ResponseError):
                self.tell("SENTINEL", "FAILOVER", MASTER_NAME)
            time.sleep(0.05)
