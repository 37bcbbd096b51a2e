"""The ``taipan`` process itself: its ready line, its signals, its exit status."""

import asyncio
import signal
from pathlib import Path

import pytest

from taipan.broker.mqtt import constants as c
from tests.support.node import NodeProcess, free_port
from tests.support.peer import Address, Peer

pytestmark = pytest.mark.asyncio

CONFIG = """
[[listeners]]
name = "default"
type = "tcp"
bind = "127.0.0.1:{tcp}"

[[listeners]]
name = "web"
type = "ws"
bind = "127.0.0.1:{ws}"
"""


def write_config(directory: Path, text: str = CONFIG) -> tuple[Path, Address, Address]:
    """A configuration on free ports, and where tcp and ws will listen."""
    tcp, ws = free_port(), free_port()
    path = directory / "taipan.toml"
    path.write_text(f'[node]\ndata_dir = "{directory}"\n' + text.format(tcp=tcp, ws=ws))
    return path, Address("127.0.0.1", tcp), Address("127.0.0.1", ws, "ws")


async def test_serves_from_the_ready_line_to_sigterm(tmp_path: Path) -> None:
    """Messages between versions and transports; then DISCONNECT 0x8B, an orderly end, and status 0."""
    path, tcp, ws = write_config(tmp_path)
    node = await NodeProcess(path).start()
    old, new = Peer(tcp, 4), Peer(ws, 5)
    try:
        await old.connect()
        await new.connect()
        await old.subscribe("#", qos=2)
        await new.publish("a", b"x", 2)
        await old.expect_publish("a", b"x", 2)
    finally:
        stopping = asyncio.create_task(node.stop())
    await new.expect_disconnect(0x8B)
    await old.expect_closed()
    await old.close()
    await new.close()
    assert await stopping == 0


async def test_a_unix_socket_that_a_killed_node_has_left(tmp_path: Path) -> None:
    """The next start replaces it. While a node listens there, another does not start; at its stop the file is gone."""
    path = tmp_path / "mqtt.sock"
    files = []
    for name in ("a", "b"):
        file = tmp_path / f"{name}.toml"
        file.write_text(
            f'[node]\ndata_dir = "{tmp_path / name}"\n[[listeners]]\nname = "local"\ntype = "unix"\nbind = "{path}"\n'
        )
        files.append(file)
    first = await NodeProcess(files[0]).start()
    assert f"local=unix:{path}" in first.ready
    peer = Peer(Address(str(path), 0, "unix"))
    await peer.connect()
    with pytest.raises(AssertionError, match=f"listener local: cannot bind {path}: another process listens at this"):
        await NodeProcess(files[1]).start()
    await peer.ping()
    first.process.kill()
    await first.process.communicate()
    await peer.close()
    assert path.exists()
    second = await NodeProcess(files[0]).start()
    peer = Peer(Address(str(path), 0, "unix"))
    await peer.connect()
    second.process.send_signal(signal.SIGHUP)
    await peer.ping()
    stopping = asyncio.create_task(second.stop())
    await peer.expect_disconnect(0x8B)
    await peer.close()
    assert await stopping == 0
    assert not path.exists()


async def test_bind_from_the_command_line(tmp_path: Path) -> None:
    path, _, _ = write_config(tmp_path)
    port = free_port()
    node = await NodeProcess(path, "--set", f"listeners.0.bind=127.0.0.1:{port}").start()
    try:
        peer = Peer(Address("127.0.0.1", port))
        await peer.connect()
        await peer.disconnect()
    finally:
        assert await node.stop() == 0


async def test_sighup_takes_new_limits_and_drops_nobody(tmp_path: Path) -> None:
    """A connection made afterwards is told the new Maximum QoS; the old one goes on as it was."""
    path, tcp, _ = write_config(tmp_path, CONFIG + "\n[zones.external]\nmax_qos = 2\n")
    node = await NodeProcess(path).start()
    try:
        old = Peer(tcp)
        await old.connect()
        path.write_text(path.read_text().replace("max_qos = 2", "max_qos = 1"))
        node.process.send_signal(signal.SIGHUP)
        for _ in range(100):
            new = Peer(tcp)
            connack = await new.connect()
            await new.disconnect()
            if connack.properties.get(c.MAXIMUM_QOS) == 1:
                break
        else:
            raise AssertionError("the new limit never came")
        await old.publish("a", b"x", 2)
        await old.disconnect()
    finally:
        assert await node.stop() == 0


@pytest.mark.parametrize(
    "text, said",
    [
        ("[[listeners]]\nname = 'a'\ntype = 'tcp'\nbindd = '127.0.0.1:1'\n", "bind"),
        ("[[listeners]]\nname = 'a'\ntype = 'udp'\nbind = '127.0.0.1:1'\n", "type"),
        ("[[listeners]\n", "taipan"),
    ],
)
async def test_wrong_configuration_stops_the_start(tmp_path: Path, text: str, said: str) -> None:
    """Non-zero status, and one line that says why."""
    path, _, _ = write_config(tmp_path, text)
    with pytest.raises(AssertionError, match=rf"ended with [1-9](.|\n)*{said}"):
        await NodeProcess(path).start()


async def test_port_in_use_stops_the_start(tmp_path: Path) -> None:
    path, _, _ = write_config(tmp_path)
    node = await NodeProcess(path).start()
    try:
        with pytest.raises(AssertionError, match=r"ended with [1-9]"):
            await NodeProcess(path).start()
    finally:
        assert await node.stop() == 0
