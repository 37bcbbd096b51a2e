"""The node that the clients talk to, and the clients themselves."""

import asyncio
import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.absent import absent
from tests.support.mqtt_js import mqtt_js
from tests.support.node import NodeProcess, external_node, free_port

from .clients.client import Address, InteropClient, LoopThread, Will

_numbers = itertools.count(1)

Connect = Callable[..., InteropClient]


CONFIG = """
[[listeners]]
name = "tcp"
type = "tcp"
bind = "127.0.0.1:{port}"

[[listeners]]
name = "ws"
type = "ws"
bind = "127.0.0.1:{ws_port}"
"""


class RunningNode:
    """A node process that outlives single tests, and whose output is read so that it never waits for us."""

    def __init__(self, config: Path, *arguments: str) -> None:
        self._thread = LoopThread()
        self._process = NodeProcess(config, *arguments)
        self._thread.run(self._start(), 30.0)

    async def _start(self) -> None:
        await self._process.start()
        process = self._process.process
        assert process.stdout is not None and process.stderr is not None
        self._drains = [asyncio.create_task(self._drain(each)) for each in (process.stdout, process.stderr)]

    async def _drain(self, stream: asyncio.StreamReader) -> None:
        while await stream.read(65_536):
            pass

    async def _stop(self) -> int:
        for drain in self._drains:
            drain.cancel()
        await asyncio.gather(*self._drains, return_exceptions=True)
        return await self._process.stop()

    def stop(self) -> int:
        """Stops it; its exit status."""
        status = self._thread.run(self._stop(), 15.0)
        self._thread.stop()
        return status


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A node process with a tcp and a ws listener, or the broker that the environment names."""
    external = external_node()
    if external is not None:
        tcp, ws = external.address("tcp"), external.address("ws")
        yield Address(tcp.host, tcp.port, ws.host, ws.port, ws.path)
        return
    port, ws_port = free_port(), free_port()
    config = tmp_path_factory.mktemp("node") / "taipan.toml"
    config.write_text(CONFIG.format(port=port, ws_port=ws_port))
    node = RunningNode(config, "--set", f"node.data_dir={config.parent}")
    yield Address("127.0.0.1", port, "127.0.0.1", ws_port)
    assert node.stop() == 0


@pytest.fixture(scope="session")
def js_process() -> Iterator[object]:
    """The node process of MQTT.js, with its packages installed from ``package-lock.json`` where they are not yet."""
    from .clients.mqtt_js import JsProcess

    node, _ = mqtt_js()
    process = JsProcess(node)
    yield process
    process.stop()


def adapter(library: str, request: pytest.FixtureRequest) -> type[InteropClient]:
    """The adapter class of a library."""
    module = {"paho-mqtt": "paho.mqtt.client", "aiomqtt": "aiomqtt", "gmqtt": "gmqtt", "amqtt": "amqtt.client"}
    if library in module and importlib.util.find_spec(module[library].split(".")[0]) is None:
        absent(library)
    if library == "paho-mqtt":
        from .clients.paho import PahoClient

        return PahoClient
    if library == "aiomqtt":
        from .clients.aiomqtt_client import AiomqttClient

        return AiomqttClient
    if library == "gmqtt":
        from .clients.gmqtt_client import GmqttClient

        return GmqttClient
    if library == "amqtt":
        from .clients.amqtt_client import AmqttClient

        return AmqttClient
    from .clients.mqtt_js import JsProcess, MqttJsClient

    process = request.getfixturevalue("js_process")
    assert isinstance(process, JsProcess)
    MqttJsClient.node = process
    return MqttJsClient


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"interop{os.getpid()}x{next(_numbers)}"


@pytest.fixture
def connect(
    request: pytest.FixtureRequest, address: Address, unique: str, subject: tuple[str, int, str]
) -> Iterator[Connect]:
    """Makes connected clients of the library under test; each must end with ``disconnect`` or ``drop`` or ends here."""
    library, version, transport = subject
    made_of = adapter(library, request)
    open_clients: list[InteropClient] = []

    def make(
        name: str, persistent: bool = False, clean: bool = True, will: Will | None = None, present: bool = False
    ) -> InteropClient:
        client = made_of(address, version, transport, f"{unique}-{name}", persistent, clean, will)
        told = client.connect()
        if told is not None and version != 3:
            assert told is present
        open_clients.append(client)
        return client

    yield make
    for client in open_clients:
        if not getattr(client, "ended", False):
            client.disconnect()
