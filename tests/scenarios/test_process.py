"""The real process: ready line, signals, exit status, what SIGHUP changes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from taipan.broker.access.password_hash import ScryptHash
from tests.support.node import NO_DASHBOARD, NodeProcess, free_port
from tests.support.patience import patience
from tests.support.peer import Address, Peer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

CONFIG = """
[[listeners]]
name = "one"
type = "tcp"
bind = "127.0.0.1:{tcp}"

[[listeners]]
name = "two"
type = "ws"
bind = "127.0.0.1:{ws}"

{rest}
"""
USER = """
[[access.users]]
username = "ann"
password_hash = "{hash}"
"""


class ConfiguredNode:
    """A configuration file and the process that runs with it."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "taipan.toml"
        self.tcp = Address("127.0.0.1", free_port())
        self.ws = Address("127.0.0.1", free_port(), "ws")
        self.process = NodeProcess(self.config, "--set", f"node.data_dir={directory}")
        self.peers: list[Peer] = []

    def write(self, rest: str = "") -> None:
        self.config.write_text(CONFIG.format(tcp=self.tcp.port, ws=self.ws.port, rest=rest))

    async def connect(self, version: int = 5, address: Address | None = None, **options: object) -> Peer:
        peer = Peer(address or self.tcp, version)
        self.peers.append(peer)
        await peer.connect(**options)  # type: ignore[arg-type]
        return peer

    async def reload(self) -> None:
        """SIGHUP, and until it is done: the node logs a line about it."""
        self.process.process.send_signal(signal.SIGHUP)
        stderr = self.process.process.stderr
        assert stderr is not None
        async with asyncio.timeout(patience(40)):
            while line := await stderr.readline():
                if b"reload" in line:
                    return
        raise AssertionError("ended instead of reloading")


@pytest_asyncio.fixture(loop_scope="module")
async def configured(tmp_path: Path) -> AsyncIterator[ConfiguredNode]:
    configured = ConfiguredNode(tmp_path)
    yield configured
    for peer in configured.peers:
        peer.abort()
    if configured.process._process is not None and configured.process.process.returncode is None:
        await configured.process.stop()


async def test_ready_serve_and_stop(configured: ConfiguredNode) -> None:
    """One line when every listener accepts; SIGTERM says goodbye and ends with 0 [MQTT-3.14.0-1]."""
    configured.write()
    await configured.process.start()
    assert configured.process.ready.startswith("taipan ready")
    assert str(configured.tcp.port) in configured.process.ready and str(configured.ws.port) in configured.process.ready
    five, four, web = (
        await configured.connect(5),
        await configured.connect(4),
        await configured.connect(5, configured.ws),
    )
    await web.subscribe("t", qos=1)
    await five.publish("t", b"x", 1)
    await web.expect_publish("t", b"x", 1)
    stopping = asyncio.create_task(configured.process.stop())
    for peer in (five, four, web):
        await peer.expect_disconnect(0x8B)
        await peer.close()
    assert await stopping == 0


async def test_a_client_that_does_not_answer_does_not_hold_the_end(configured: ConfiguredNode) -> None:
    configured.write()
    await configured.process.start()
    peers = [await configured.connect(5) for _ in range(20)]
    assert await configured.process.stop(9) == 0
    for peer in peers:
        peer.abort()


async def test_sighup_takes_users_rules_and_limits_without_dropping_a_client(configured: ConfiguredNode) -> None:
    configured.write("[zones.external]\nallow_anonymous = true\n")
    await configured.process.start()
    before = await configured.connect(5)
    await before.subscribe("t", "no/x", qos=1)
    rest = "[zones.external]\nallow_anonymous = false\nmax_packet_size = 5000\n"
    rest += USER.format(hash=ScryptHash.create(b"secret"))
    rest += '[[access.rules]]\nallow = false\naction = "publish"\ntopics = ["no/#"]\n'
    configured.write(rest)
    await configured.reload()
    await before.nothing()
    refused = await configured.connect(5, expect=None)
    assert refused.connack.reason_code in (0x86, 0x87)
    ann = await configured.connect(5, username="ann", password=b"secret")
    assert 5000 in ann.connack.properties.values()
    await ann.publish("no/x", b"x", 1, expect=0x87)
    await ann.publish("t", b"x", 1)
    await before.expect_publish("t", b"x", 1)
    assert await configured.process.stop() == 0


async def test_sighup_with_a_broken_file_changes_nothing(configured: ConfiguredNode) -> None:
    configured.write()
    await configured.process.start()
    peer = await configured.connect(5)
    configured.config.write_text("[zones.external]\nmax_qoss = 1\n")
    await configured.reload()
    await peer.nothing()
    await configured.connect(4)
    assert await configured.process.stop() == 0


async def taipan(*arguments: str) -> tuple[int, str, str]:
    """Runs the command to its end: status, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "taipan.management.node", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2],
        env={**os.environ, "TAIPAN__MANAGEMENT__BIND": "127.0.0.1:0", **NO_DASHBOARD},
    )  # fmt: skip
    async with asyncio.timeout(patience(40)):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_check(configured: ConfiguredNode) -> None:
    configured.write()
    status, out, err = await taipan("check", str(configured.config))
    assert (status, out, err) == (0, f"{configured.config}: ok\n", "")
    configured.config.write_text("[node]\nnamee = 'x@y'\n")
    status, _, err = await taipan("check", str(configured.config))
    assert status != 0
    assert len(err.strip().splitlines()) == 1
    for word in (str(configured.config), "2", "namee", "name"):
        assert word in err


async def test_a_port_that_is_taken_is_one_line_and_a_status(configured: ConfiguredNode) -> None:
    configured.write()
    await configured.process.start()
    elsewhere = f"node.data_dir={configured.config.parent / 'elsewhere'}"
    status, _, err = await taipan("--config", str(configured.config), "--set", elsewhere)
    assert status != 0
    assert str(configured.tcp.port) in err.strip().splitlines()[-1]
    assert "Traceback" not in err
    assert await configured.process.stop() == 0
