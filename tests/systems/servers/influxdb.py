"""InfluxDB 1."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from tests.support.node import free_port

from .process import ServerProcess, program


class InfluxDb(ServerProcess):
    """``user`` may read and write ``database``. ``tls``: a certificate with its key, for HTTPS."""

    def __init__(self) -> None:
        self._program = program("influxd")
        super().__init__()
        self._inner = free_port()
        self.tls: tuple[str, str] | None = None

    def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        https = ""
        if self.tls is not None:
            certificate, key = self.give("server.pem", self.tls[0]), self.give("server.key", self.tls[1])
            https = f'https-enabled = true\nhttps-certificate = "{certificate}"\nhttps-private-key = "{key}"\n'
        settings = self.directory / "influxdb.conf"
        settings.write_text(
            f'reporting-disabled = true\nbind-address = "127.0.0.1:{self._inner}"\n'
            f'[meta]\ndir = "{self.directory}/meta"\n'
            f'[data]\ndir = "{self.directory}/data"\nwal-dir = "{self.directory}/wal"\n'
            f"[monitor]\nstore-enabled = false\n"
            f'[http]\nbind-address = "{self.address}"\nauth-enabled = true\nlog-enabled = false\n{https}'
        )
        settings.chmod(0o644)
        return [self._program, "-config", str(settings)]

    def ready(self) -> bool:
        if self.tls is not None:
            return True
        try:
            urllib.request.urlopen(f"http://{self.address}/ping", timeout=5).close()
        except OSError:
            return False
        return True

    def populate(self) -> None:
        self._ask("CREATE USER root WITH PASSWORD 'r00t' WITH ALL PRIVILEGES", credentials=False)
        self._ask(f"CREATE DATABASE {self.database}")
        self._ask(f"CREATE USER {self.user} WITH PASSWORD '{self.password}'")
        self._ask(f"GRANT ALL ON {self.database} TO {self.user}")

    def _ask(self, query: str, credentials: bool = True) -> Any:
        fields = {"q": query, "db": self.database, "epoch": "ms"}
        login = "?u=root&p=r00t" if credentials else ""
        data = urllib.parse.urlencode(fields).encode()
        with urllib.request.urlopen(f"http://{self.address}/query{login}", data, timeout=10) as reply:
            (result,) = json.load(reply)["results"]
        assert "error" not in result, result
        return result

    def query(self, query: str) -> list[dict[str, Any]]:
        """The rows of all series, with the names of their columns."""
        found = self._ask(query).get("series", [])
        return [dict(zip(each["columns"], row, strict=True)) for each in found for row in each["values"]]
