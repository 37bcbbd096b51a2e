"""The figures of the last hour after a kill -9: what was is there, and the time between is said."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import ApiClient
from tests.support.node import NodeProcess, free_port
from tests.support.patience import patience

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(90)]

CONFIG = """
[node]
data_dir = "{data}"

[[listeners]]
name = "one"
type = "tcp"
bind = "127.0.0.1:{port}"

[[management.apps]]
id = "tester"
secret = "a secret"
"""
PATIENCE = 40.0


async def points(api: ApiClient, least: int) -> dict[str, Any]:
    """The answer, as soon as it has so many points."""
    async with asyncio.timeout(patience(PATIENCE)):
        while True:
            data: dict[str, Any] = (await api.get("/monitor")).data
            if len(data["points"]) >= least:
                return data
            await asyncio.sleep(0.1)


async def test_history_over_a_kill(tmp_path: Path) -> None:
    config = tmp_path / "taipan.toml"
    config.write_text(CONFIG.format(data=tmp_path / "data", port=free_port()), "utf-8")
    management = f"127.0.0.1:{free_port()}"
    api = ApiClient(f"http://{management}")
    node = await NodeProcess(config, "--set", f"management.bind={management}").start()
    try:
        before = await points(api, 3)
        node.process.kill()
        killed = time.time()
        await node.process.communicate()
        await api.close()
        await asyncio.sleep(2.5)  # it is the time without a node that is to be seen
        node = await NodeProcess(config, "--set", f"management.bind={management}").start()
        after = await points(api, len(before["points"]) + 2)
        was = [row for row in after["points"] if row[0] <= before["points"][-1][0]]
        assert was == before["points"]
        start, end = after["gaps"][-1]
        assert abs(start - killed * 1000) < 2500 and end - start > 1250
        assert [row for row in after["points"] if start < row[0] < end] == []
        assert after["points"][-1][0] > end
    finally:
        await api.close()
        if node.process.returncode is None:
            node.process.kill()
            await node.process.communicate()
