"""Commands: a device retains a command at one node, its controller clears it at another; then no node may have it."""

import asyncio
import random
from collections.abc import Callable

from taipan.broker.mqtt.constants import MESSAGE_EXPIRY_INTERVAL
from tests.support.peer import Address, Closed, Peer

TOPICS = 3
TOPIC = "k/"
FAILED = (Closed, OSError, TimeoutError, AssertionError)
"""The node is not running, does not answer, or has refused the client."""


class Commands:
    """The commands of one cluster. ``cleared``: topics with an acknowledged clear after the last command, each with its
    history. ``refused``: acknowledgements with an error."""

    def __init__(self, rng: random.Random, ports: Callable[[], list[int]]) -> None:
        self._rng = rng
        self._ports = ports
        self._number = 0
        self.cleared: dict[str, str] = {}
        self.refused: list[str] = []
        self.count = 0

    async def go_on(self, number: int) -> None:
        """Retain and clear one command after another on a topic, until the task is cancelled."""
        while True:
            await self._command(f"{TOPIC}{number}")
            await asyncio.sleep(self._rng.uniform(0.0, 0.05))

    async def _command(self, topic: str) -> None:
        rng = self._rng
        self._number += 1
        at, to = rng.choice(self._ports()), rng.choice(self._ports())
        seen = rng.random() < 0.5
        # A QoS 0 message can only be seen. The clear has an acknowledgement, or nothing would be promised.
        qos, clear_qos = rng.randint(0 if seen else 1, 2), rng.randint(1, 2)
        version = rng.choice((4, 5))
        what = (
            f"{'seen' if seen else 'acknowledged'} command {self._number} qos {qos} v{version}, clear qos {clear_qos}"
        )
        self.cleared.pop(topic, None)
        device, controller = (Peer(Address("127.0.0.1", port), version) for port in (at, to))
        try:
            for peer, name in ((controller, "controller"), (device, "device")):
                await peer.open()
                await peer.connect(f"{name}-{topic}")
            if seen:
                await controller.subscribe(topic, qos=2)
            properties = {MESSAGE_EXPIRY_INTERVAL: 3600} if version == 5 and rng.random() < 0.3 else {}
            payload = str(self._number).encode()
            sending = asyncio.ensure_future(
                device.publish(topic, payload, qos=qos, retain=True, properties=properties, expect=None)
            )
            try:
                if seen:
                    while (await controller.expect_publish()).payload != payload:
                        pass  # an earlier one that was left
                elif not self._taken(await sending, what):
                    return
                if self._taken(await controller.publish(topic, b"", qos=clear_qos, retain=True, expect=None), what):
                    self.cleared[topic] = f"{what}, {at} to {to}"
                    self.count += 1
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        except FAILED:
            await asyncio.sleep(0.05)
        finally:
            device.abort()
            controller.abort()

    def _taken(self, code: int, what: str) -> bool:
        if code >= 0x80:
            self.refused.append(f"{code:#x} for {what}")
        return code < 0x80

    def left(self, found: dict[str, str]) -> list[str]:
        """Return the commands among ``found`` that should no longer be retained."""
        return [f"{topic} has {found[topic]!r}: {how}" for topic, how in self.cleared.items() if topic in found]
