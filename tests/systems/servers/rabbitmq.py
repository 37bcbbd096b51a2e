"""RabbitMQ, with an epmd of its own."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

from tests.support.absent import absent
from tests.support.certificates import Certificates
from tests.support.node import free_port

from .process import ServerProcess, program

_BIN = "/usr/lib/rabbitmq/bin"


class RabbitMq(ServerProcess):
    """``user`` may do everything in the virtual host ``/``. A message has at most ``LARGEST`` bytes."""

    LARGEST = 100_000

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self.tls_port = free_port()
        # Debian's program of this name changes to its own account.
        if not Path(_BIN).is_dir():
            absent("rabbitmq-server")
        self._server, self._ctl = f"{_BIN}/rabbitmq-server", f"{_BIN}/rabbitmqctl"
        self._epmd: subprocess.Popen[bytes] | None = None
        self._epmd_port, self._distribution_port = free_port(), free_port()
        super().__init__()

    def prepare(self) -> None:
        for name in ("mnesia", "logs"):
            (self.directory / name).mkdir()
            self.own(self.directory / name)
        for name, text in (("plugins", "[].\n"), ("env.conf", "")):
            (self.directory / name).write_text(text)
            self.own(self.directory / name, 0o600)
        self.certify("rabbit.example")
        self.give("ca.pem", self._certificates.ca)
        self._epmd = subprocess.Popen(
            [program("epmd"), "-address", "127.0.0.1", "-port", str(self._epmd_port)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.directory,
            env=self._environment(), **self._as_account(),
        )  # fmt: skip

    def command(self) -> list[str]:
        lines = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}", "default_user": self.user, "default_pass": self.password,
            "log.console": "true", "log.file": "false", "max_message_size": str(self.LARGEST),
            "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
            "ssl_options.verify": "verify_peer",
            "ssl_options.certfile": str(self.directory / "server.pem"),
            "ssl_options.keyfile": str(self.directory / "server.key"),
            "ssl_options.cacertfile": str(self.directory / "ca.pem"),
        }  # fmt: skip
        file = self.directory / "rabbitmq.conf"
        file.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
        self.own(file, 0o600)
        return [self._server]

    def ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5.0) as connection:
                connection.sendall(b"AMQP\0\0\x09\x01")
                return connection.recv(1) == b"\x01"
        except OSError:  # while it starts, it may accept a connection and reset it
            return False

    def populate(self) -> None:
        """Its user is one of its settings."""

    def certify(self, name: str, expired: bool = False) -> None:
        """The certificate of its TLS port from now on, if it has not read another one."""
        certificate, key = self._certificates.issue(name, expired=expired)
        self.give("server.pem", certificate)
        self.give("server.key", key)

    def ctl(self, *words: str) -> str:
        return self.run(self._ctl, "-q", *words)

    def close(self) -> None:
        super().close()
        if self._epmd is not None:
            self._epmd.send_signal(signal.SIGKILL)
            self._epmd.wait()

    def _environment(self) -> dict[str, str]:
        directory = self.directory
        environment = super()._environment()
        return {
            **environment,
            "PATH": f"{environment['PATH']}:{_BIN}",
            "RABBITMQ_CONF_ENV_FILE": str(directory / "env.conf"),
            "RABBITMQ_NODENAME": f"taipan{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
