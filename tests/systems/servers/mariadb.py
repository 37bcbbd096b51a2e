"""MariaDB, which speaks the protocol of MySQL."""

from __future__ import annotations

import subprocess

from .process import ServerProcess, program


class MariaDb(ServerProcess):
    """Its superuser is ``root``, on the socket only. ``settings``: further options, read at a start."""

    def __init__(self) -> None:
        self._mariadbd = program("mariadbd")
        self._install = program("mariadb-install-db")
        self._client = program("mariadb")
        self.settings: dict[str, str] = {}
        super().__init__()
        self._data = str(self.directory / "data")
        # A path for a socket has at most 107 characters.
        self._socket = str(self.directory / "s")

    def prepare(self) -> None:
        self.run(
            self._install, "--no-defaults", f"--datadir={self._data}", "--auth-root-authentication-method=normal",
            "--skip-test-db", "--innodb-log-file-size=8M",
        )  # fmt: skip

    def tls(self, certificate: str, key: str, authority: str) -> None:
        """From the next start on."""
        self.settings |= {
            "ssl-cert": str(self.give("server.pem", certificate)),
            "ssl-key": str(self.give("server.key", key)),
            "ssl-ca": str(self.give("authority.pem", authority)),
        }

    def command(self) -> list[str]:
        return [
            self._mariadbd, "--no-defaults", f"--datadir={self._data}", f"--port={self.port}",
            f"--socket={self._socket}", "--bind-address=127.0.0.1", "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M",
            "--sync-binlog=0", "--skip-log-bin", *(f"--{name}={value}" for name, value in self.settings.items()),
        ]  # fmt: skip

    def ready(self) -> bool:
        try:
            self.query("select 1", "mysql")
        except (AssertionError, subprocess.TimeoutExpired):
            return False
        return True

    def populate(self) -> None:
        self.query(
            f"create database {self.database}; create user {self.user}@'127.0.0.1' identified by '{self.password}'; "
            f"grant all on {self.database}.* to {self.user}@'127.0.0.1'",
            "mysql",
        )

    def stop(self) -> None:
        """As its operator stops it: SIGTERM, since it ignores SIGINT."""
        self._end(15)

    def disconnect(self) -> None:
        """End the connections of the user."""
        self.query(f"kill user {self.user}@'127.0.0.1'")

    def query(self, sql: str, database: str = "") -> list[list[str]]:
        """Statements of the superuser; the rows of the last one as texts, NULL as ``NULL``."""
        said = self.run(
            self._client, "--no-defaults", f"--socket={self._socket}", "-uroot", "-N", "-B",
            "--default-character-set=utf8mb4", database or self.database, text=sql,
        )  # fmt: skip
        return [each.split("\t") for each in said.splitlines()]
