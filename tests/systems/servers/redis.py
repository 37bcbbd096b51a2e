"""Redis."""

from __future__ import annotations

import socket
from typing import Any

import redis

from .process import ServerProcess, program


class RedisServer(ServerProcess):
    """``settings``: further options, read at a start. What it stores outlives a ``stop``, and a ``kill`` after
    ``save``."""

    def __init__(self) -> None:
        self._server = program("redis-server")
        self.settings: dict[str, str] = {}
        super().__init__()

    def prepare(self) -> None:
        """It needs nothing."""

    def tls(self, certificate: str, key: str) -> int:
        """From the next start on, it accepts TLS only."""
        self.settings |= {
            "tls-port": str(self.port),
            "tls-cert-file": str(self.give("server.pem", certificate)),
            "tls-key-file": str(self.give("server.key", key)),
            "tls-auth-clients": "no",
        }
        return self.port

    def command(self) -> list[str]:
        port = "0" if "tls-port" in self.settings else str(self.port)
        options = [each for name, value in self.settings.items() for each in (f"--{name}", value)]
        return [
            self._server, "--port", port, "--bind", "127.0.0.1", "--dir", str(self.directory),
            "--requirepass", self.password, "--appendonly", "yes", "--appendfsync", "always", "--save", "", *options,
        ]  # fmt: skip

    def ready(self) -> bool:
        if "tls-port" in self.settings:
            return True
        try:
            return self.say("PING") == "+PONG"
        except (OSError, AssertionError):
            return False

    def populate(self) -> None:
        """It has no users beside the one with ``password``."""

    def disconnect(self) -> None:
        """End the connections of all clients."""
        self.say("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def say(self, *words: str) -> str:
        """The first line of the answer to a command."""
        with socket.create_connection(("127.0.0.1", self.port), 5.0) as connection:
            connection.sendall(_written(["AUTH", self.password]) + _written(list(words)))
            lines = connection.makefile("rb")
            greeting = lines.readline().decode().strip()
            assert greeting == "+OK", greeting
            answer = lines.readline().decode().strip()
            assert not answer.startswith("-"), answer
            return answer

    def say_all(self, commands: list[list[str]]) -> None:
        """Many commands at once."""
        with redis.Redis("127.0.0.1", self.port, password=self.password or None) as client:
            pipeline = client.pipeline(transaction=False)
            for words in commands:
                pipeline.execute_command(*words)
            pipeline.execute()

    def tell(self, *words: str) -> Any:
        """The whole answer to a command."""
        with redis.Redis(
            "127.0.0.1", self.port, password=self.password or None, decode_responses=True, protocol=2
        ) as client:
            client.response_callbacks.clear()  # as the server has sent it
            return client.execute_command(*words)


def _written(words: list[str]) -> bytes:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        parts.append(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()))
    return b"".join(parts)
