"""PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from .process import ServerProcess, program


def _places() -> list[str]:
    """Debian keeps the programs of each version apart, and not in the path."""
    return [str(each) for each in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]


class Postgresql(ServerProcess):
    """The superuser is ``postgres``, from this machine only. ``settings``: further ones, read at a start."""

    def __init__(self) -> None:
        self._postgres = program("postgres", *_places())
        self._initdb = program("initdb", *_places())
        self._psql = program("psql", *_places())
        self.settings: dict[str, str] = {}
        super().__init__()
        self._data = self.directory / "data"
        self._sockets = str(self.directory)

    def prepare(self) -> None:
        self.run(self._initdb, "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N")
        self.access("scram-sha-256")

    def access(self, *lines: str) -> None:
        """Who may log in over TCP: a method for everybody, or lines of pg_hba.conf. Read again by ``reload``."""
        over_tcp = [each if " " in each else f"host all all 127.0.0.1/32 {each}" for each in lines]
        (self._data / "pg_hba.conf").write_text("\n".join(["local all all trust", *over_tcp, ""]))

    def tls(self, certificate: str, key: str) -> None:
        """From the next start or ``reload`` on."""
        self.settings |= {
            "ssl": "on",
            "ssl_cert_file": f"'{self.give('server.pem', certificate)}'",
            "ssl_key_file": f"'{self.give('server.key', key)}'",
        }

    def _write_settings(self) -> None:
        lines = [f"{name} = {value}\n" for name, value in self.settings.items()]
        (self._data / "postgresql.auto.conf").write_text("".join(lines))

    def command(self) -> list[str]:
        self._write_settings()
        fixed = {
            "port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": self._sockets,
            "fsync": "off",
        }  # fmt: skip
        return [
            self._postgres, "-D", str(self._data), *(f"--{name}={value}" for name, value in fixed.items()),
        ]  # fmt: skip

    def ready(self) -> bool:
        try:
            self.query("select 1", "postgres")
        except AssertionError:
            return False
        return True

    def populate(self) -> None:
        self.query(f"create role {self.user} login password '{self.password}'", "postgres")
        self.query(f"create database {self.database} owner {self.user}", "postgres")

    def reload(self) -> None:
        """It reads its settings and who may log in once more."""
        self._write_settings()
        self.query("select pg_reload_conf()", "postgres")

    def disconnect(self) -> None:
        """End the connections of all clients."""
        self.query(
            "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend' "
            "and pid <> pg_backend_pid()"
        )

    def query(self, sql: str, database: str = "") -> list[list[str]]:
        """Statements of the superuser; the rows of the last one as texts, NULL as an empty one."""
        said = self.run(
            self._psql, "-h", self._sockets, "-p", str(self.port), "-U", "postgres", "-d", database or self.database,
            "-XqAt0", "-F", "\x1f", "-v", "ON_ERROR_STOP=1", "-f", "-", text=sql,
        )  # fmt: skip
        return [each.split("\x1f") for each in said.split("\0") if each]
