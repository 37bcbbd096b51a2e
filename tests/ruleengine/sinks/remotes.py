"""Brokers that a bridge is tested with: this one, aMQTT's in this process, and Mosquitto where it is installed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from amqtt.broker import Broker  # type: ignore[import-untyped]

from tests.support.absent import absent
from tests.support.amqtt_broker import shut_down
from tests.support.node import Node, free_port, make_settings
from tests.support.patience import patience
from tests.support.peer import Address, Peer

KINDS = ("taipan", "mosquitto")
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class Remote:
    """A broker on a port of its own that can be started, stopped and started again."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.port = free_port()
        self._directory = directory
        self._node: Node | None = None
        self._broker: Broker | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        if self.kind == "taipan":
            self._node = Node(make_settings(listeners=[{"type": "tcp", "bind": self.address}]))
            await self._node.start()
        elif self.kind == "amqtt":
            self._broker = Broker(
                {
                    "listeners": {"default": {"type": "tcp", "bind": self.address}},
                    "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
                }
            )
            await self._broker.start()
        else:
            assert MOSQUITTO is not None
            config = self._directory / "mosquitto.conf"
            # With a bound on messages in flight its queue lets later ones overtake at QoS 2.
            config.write_text(
                f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_inflight_messages 0\n"
            )
            self._process = await asyncio.create_subprocess_exec(
                MOSQUITTO, "-c", str(config), stderr=asyncio.subprocess.DEVNULL
            )
            await self._listening()

    async def _listening(self) -> None:
        async with asyncio.timeout(patience(40)):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    return

    async def stop(self) -> None:
        if self._node is not None:
            await self._node.stop()
        if self._broker is not None:
            await shut_down(self._broker)
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
        self._node = self._broker = self._process = None

    async def client(self, *filters: str, qos: int = 1) -> Peer:
        """A client of it with these subscriptions."""
        peer = Peer(Address("127.0.0.1", self.port), 4)
        await peer.connect()
        for each in filters:
            await peer.subscribe(each, qos=qos)
        return peer


@asynccontextmanager
async def remote(kind: str, directory: Path) -> AsyncIterator[Remote]:
    if kind == "mosquitto" and MOSQUITTO is None:
        absent("mosquitto")
    made = Remote(kind, directory)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
