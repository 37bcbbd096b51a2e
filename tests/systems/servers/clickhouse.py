"""ClickHouse."""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.error
import urllib.request
from typing import Any

from tests.support.node import free_port

from .process import ServerProcess, program

_QUOTA = "".join(f"<{name}>0</{name}>" for name in ("queries", "errors", "result_rows", "read_rows", "execution_time"))


class ClickHouse(ServerProcess):
    """``set_password`` changes that of ``user``; the server reads it by itself."""

    def __init__(self) -> None:
        self._program = program("clickhouse-server")
        self._changed = 0
        super().__init__()
        self._inner = [free_port(), free_port()]

    def prepare(self) -> None:
        self.set_password(self.password)

    def set_password(self, password: str) -> None:
        users = self.directory / "users.xml"
        entries = "".join(
            f"<{name}><password>{secret}</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile>"
            f"<quota>default</quota></{name}>"
            for name, secret in ((self.user, password), ("root", "r00t"))
        )
        users.write_text(
            "<yandex><profiles><default><max_memory_usage>1000000000</max_memory_usage></default></profiles>"
            f"<users>{entries}</users><quotas><default><interval><duration>3600</duration>{_QUOTA}</interval></default>"
            "</quotas></yandex>"
        )
        users.chmod(0o644)
        # The server compares times in whole seconds, and reads a file only if its time has changed.
        self._changed = max(int(time.time()), self._changed + 2)
        os.utime(users, (self._changed, self._changed))

    def command(self) -> list[str]:
        settings = self.directory / "config.xml"
        place = self.directory
        settings.write_text(
            "<yandex><logger><level>warning</level><console>1</console></logger><listen_host>127.0.0.1</listen_host>"
            f"<http_port>{self.port}</http_port><tcp_port>{self._inner[0]}</tcp_port>"
            f"<interserver_http_port>{self._inner[1]}</interserver_http_port><path>{place}/data/</path>"
            f"<tmp_path>{place}/tmp/</tmp_path><users_config>{place}/users.xml</users_config>"
            "<mark_cache_size>10000000</mark_cache_size><default_profile>default</default_profile>"
            "<default_database>default</default_database></yandex>"
        )
        settings.chmod(0o644)
        return [self._program, f"--config-file={settings}"]

    def ready(self) -> bool:
        try:
            self.query("SELECT 1 AS one")
        except (OSError, AssertionError):
            return False
        return True

    def populate(self) -> None:
        self.execute(f"CREATE DATABASE {self.database}")

    def execute(self, sql: str) -> bytes:
        """As an administrator. Raises AssertionError."""
        login = base64.b64encode(b"root:r00t").decode()
        request = urllib.request.Request(
            f"http://{self.address}/", sql.encode(), {"authorization": f"Basic {login}"}
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                found: bytes = reply.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None
        return found

    def query(self, sql: str) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self.execute(f"{sql} FORMAT JSONEachRow").splitlines()]
