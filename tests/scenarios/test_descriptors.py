"""Unauthenticated connections take every descriptor they can get: operators, the store and a reload have theirs."""

import asyncio
import base64
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from taipan.broker.mqtt.constants import SESSION_EXPIRY_INTERVAL
from tests.support.node import NodeProcess, free_port
from tests.support.patience import patience
from tests.support.peer import Address, Peer

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

CONFIG = """
[node]
data_dir = "{data}"
[[listeners]]
name = "default"
type = "tcp"
bind = "127.0.0.1:{port}"
idle_timeout = 60.0
[[management.apps]]
id = "tester"
secret = "a secret"
"""


async def test_management_store_control_and_reload_go_on(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "t.toml"
    config.write_text(CONFIG.format(data=tmp_path / "data", port=port))
    node = await NodeProcess(config, most_files=256).start()
    found = re.search(r"management=(\S+)", node.ready)
    assert found is not None
    url = found[1] + "/api/v4"
    device = Peer(Address("127.0.0.1", port), 5)
    await device.connect("device", properties={SESSION_EXPIRY_INTERVAL: 600})
    await device.subscribe("a/#", qos=1)
    idle = []
    try:
        for _ in range(400):
            idle.append(await asyncio.open_connection("127.0.0.1", port))
        basic = "Basic " + base64.b64encode(b"tester:a secret").decode()
        async with aiohttp.ClientSession(headers={"Authorization": basic}) as operator:
            async with asyncio.timeout(patience(40)):
                # Until it has taken all that it will take.
                while True:
                    async with operator.get(url + "/metrics") as response:
                        assert response.status == 200
                    async with operator.get(found[1] + "/metrics") as response:
                        text = await response.text()
                    if 'taipan_listener_refused_total{listener="mqtt:tcp:default",reason="no_sockets"}' in text:
                        break
                    await asyncio.sleep(0.1)
            async with operator.post(url + "/data/export") as response:  # opens files
                assert (await response.json())["code"] == 0
            body = {"login": "ann", "password": "secret-1234", "is_superuser": False}
            async with operator.post(url + "/auth_user", json=body) as response:
                assert (await response.json())["code"] == 0
            await device.publish("a/b", b"kept", qos=1)  # on disk, or it would not be acknowledged
            node.process.send_signal(signal.SIGHUP)
            ctl = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "taipan.management.ctl.main", "--data-dir", str(tmp_path / "data"), "status",
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            said, _ = await ctl.communicate()
            assert ctl.returncode == 0, said
    finally:
        for _, writer in idle:
            writer.transport.abort()
        device.abort()
        node.process.terminate()
        _, errors = await node.process.communicate()
    assert node.process.returncode == 0
    assert b"reason=no_sockets" in errors and b'setting="LimitNOFILE' in errors
    assert b" reloaded" in errors and b"Too many open files" not in errors, errors.decode()
