"""The scene of the pictures: a small factory.

Eight presses with four sensors each, three gateways, quality checks that share a subscription, a control room, an
archive that acknowledges slowly, a truck that is offline, and rules with a web hook that fails. Some clients are
refused: one has a wrong password, one is banned, one publishes where it may not.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from tests.support.browser import DashboardNode
from tests.support.certificates import Certificates
from tests.support.node import free_port
from tests.support.peer import Closed, Peer
from tests.support.wire import Publish

HALLS: Final = ("hall-a", "hall-b")
PRESSES: Final = 8
SENSORS: Final = ("temperature", "vibration", "pressure", "energy")
PASSWORD: Final = "a-Password-of-the-scene"
BANNED: Final = 0x8A
WRONG_PASSWORD: Final = 0x86
A_DAY: Final = 86_400

SETTINGS: Final = """
[zones.external]
max_queued_messages = 300
[slow_subscriptions]
enabled = true
threshold = 0.3
[[listeners]]
name = "tls"
type = "ssl"
bind = "127.0.0.1:{port}"
[listeners.tls]
certfile = "{certfile}"
keyfile = "{keyfile}"
[dashboard.openid]
issuer = "https://login.plant.example"
client_id = "taipan"
dashboard_url = "https://mqtt.plant.example"
label = "Log in with your plant account"
administrators = ["mqtt-admins"]
"""

ACCOUNTS: Final = ("archive", "control-room", "gateway", "logistics", "maintenance", "press", "quality")
RULES: Final = (
    {"username": "press", "topic": "plant/#", "action": "pub", "access": "allow"},
    {"username": "press", "topic": "#", "action": "pubsub", "access": "deny"},
    {"username": "quality", "topic": "plant/#", "action": "sub", "access": "allow"},
    {"username": "logistics", "topic": "orders/%c/#", "action": "sub", "access": "allow"},
)
STREAMS: Final = (
    {
        "id": "hot-press",
        "description": "A press is too hot",
        "rawsql": 'SELECT payload.value as celsius, clientid, topic FROM "plant/+/+/temperature" WHERE celsius > 77',
        "actions": [{"name": "data_to_webserver", "params": {"$resource": "tickets"}}],
    },
    {
        "id": "alerts",
        "description": "Vibration to the maintenance desk",
        "rawsql": 'SELECT payload.value as value, clientid FROM "plant/+/+/vibration" WHERE value > 3.9',
        "actions": [
            {
                "name": "republish",
                "params": {
                    "target_topic": "alerts/${clientid}",
                    "target_qos": 1,
                    "payload_tmpl": '{"mm_s": ${value}}',
                },
            }
        ],
    },
    {
        "id": "shift-report",
        "description": "Reports of the shift",
        "rawsql": 'SELECT * FROM "reports/shift"',
        "actions": [{"name": "data_to_webserver", "params": {"$resource": "erp"}}],
    },
    {
        "id": "old-counter",
        "description": "Before the energy report",
        "rawsql": 'SELECT * FROM "plant/+/+/energy"',
        "actions": [{"name": "do_nothing", "params": {}}],
        "enabled": False,
    },
)


class TicketServer:
    """The server of the web hook. It answers every eighth request with 500, and during an outage all of them."""

    def __init__(self) -> None:
        self.url = ""
        self.breaks = False
        self._count = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/tickets"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        await request.read()
        self._count += 1
        return web.Response(status=500 if self.breaks or self._count % 8 == 0 else 200)


def make_node(directory: Path) -> DashboardNode:
    """Create the node, with a TLS listener whose certificate expires in ten days."""
    certfile, keyfile = Certificates(directory).issue("localhost", days=10)
    return DashboardNode(
        directory,
        SETTINGS.format(port=free_port(), certfile=certfile, keyfile=keyfile),
        {"TAIPAN__RETAINED__MAX_MESSAGES": "50000"},
        name="taipan@plant-1",
    )


async def _take(peer: Peer) -> None:
    """Receive one message, and acknowledge it."""
    packet = await peer.receive(A_DAY)
    if isinstance(packet, Publish) and packet.qos:
        await peer.puback(packet.packet_id)


class Factory:
    """``start``: all clients are connected and work until ``stop``. ``speed``: how many times faster than real."""

    def __init__(self, node: DashboardNode, speed: float = 1.0) -> None:
        self.node = node
        self.speed = speed
        self.tickets = TicketServer()
        self._tasks: list[asyncio.Task[None]] = []
        self._random = random.Random(7)

    async def start(self) -> None:
        await self.tickets.start()
        await self._fill()
        await self._offline_truck()
        for press in range(1, PRESSES + 1):
            for sensor in SENSORS:
                await self._begin(self._sensor, press, sensor)
        for hall in (*HALLS, "yard"):
            await self._begin(self._gateway, hall)
        for number in range(1, 5):
            await self._begin(self._reader, f"quality-{number}", "quality", "$share/quality/plant/+/+/temperature", 1)
        for number in range(1, 3):
            await self._begin(self._reader, f"energy-report-{number}", "quality", "$share/energy/plant/+/+/energy", 1)
        await self._begin(self._reader, "control-room", "control-room", "plant/#", 0)
        await self._begin(self._reader, "maintenance-desk", "maintenance", "alerts/#", 1)
        await self._begin(self._archive)
        self._spawn(self._dispatcher())
        self._spawn(self._refused())
        self._spawn(self._fail())

    async def stop(self) -> None:
        """Disconnect the clients; the node continues to run."""
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self.tickets.stop()
        for each in ended:
            if isinstance(each, Exception) and not isinstance(each, Closed):
                raise each

    # --- what is stored ----------------------------------------------------------------------------------------------

    async def _post(self, path: str, body: Any) -> None:
        reply = await self.node.api.post(path, body)
        assert reply.code == 0, (path, reply.text)

    async def _fill(self) -> None:
        for name in ACCOUNTS:
            await self._post("/auth_username", {"username": name, "password": PASSWORD})
        for rule in reversed(RULES):
            await self._post("/acl", rule)
        ban = {"who": "forklift-2", "as": "clientid", "reason": "tablet was stolen", "by": "admin"}
        await self._post("/banned", {**ban, "until": int(time.time()) + A_DAY})
        await self._post(
            "/apps", {"app_id": "grafana", "name": "Grafana", "desc": "Panels in the hall", "status": True}
        )
        await self._post("/apps", {"app_id": "mes", "name": "MES", "desc": "Production orders", "status": True})
        for name, url, what in (
            ("tickets", self.tickets.url, "Tickets of the maintenance"),
            ("erp", f"http://127.0.0.1:{free_port()}/shift", "Reports for the office"),
        ):
            resource = {
                "id": name,
                "type": "web_hook",
                "config": {"url": url, "retry_attempts": 2},
                "description": what,
            }
            await self._post("/resources", resource)
        for rule in STREAMS:
            await self._post("/rules", rule)
        await self._post("/trace", {"name": "gateway-yard", "type": "clientid", "clientid": "gateway-yard"})
        await self.node.add_user("shift-lead", "viewer")

    async def _offline_truck(self) -> None:
        truck = await self._connected("truck-4", "logistics", properties={c.SESSION_EXPIRY_INTERVAL: A_DAY})
        await truck.subscribe("orders/truck-4/#", qos=1)
        await truck.disconnect()

    # --- the clients -------------------------------------------------------------------------------------------------

    def _spawn(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _begin(self, work: Callable[..., Awaitable[Callable[[], Any]]], *what: Any) -> None:
        """``work`` connects and subscribes, and returns what its client does from then on."""
        self._spawn((await work(*what))())

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.speed)

    async def _connected(self, name: str, username: str, version: int = 5, **connect: Any) -> Peer:
        return await self.node.client(name, version, username=username, password=PASSWORD.encode(), **connect)

    async def _sensor(self, press: int, sensor: str) -> Callable[[], Any]:
        name, hall = f"press-{press:02}", HALLS[press % len(HALLS)]
        peer = await self._connected(f"{name}-{sensor}", "press")
        topic = f"plant/{hall}/{name}/{sensor}"
        base = {"temperature": 70.0, "vibration": 3.5, "pressure": 180.0, "energy": 40.0}[sensor]

        async def work() -> None:
            await self._pause(self._random.random())
            at = self._random.random() * 300
            while True:
                # Each press warms up and cools down in some minutes.
                value = base * (1 + 0.12 * math.sin(at / 40) + 0.05 * (self._random.random() - 0.5))
                await peer.publish(
                    topic, json.dumps({"value": round(value, 1)}).encode(), qos=int(sensor != "pressure")
                )
                at += 1
                await self._pause(1.0)

        return work

    async def _gateway(self, hall: str) -> Callable[[], Any]:
        status = f"plant/{hall}/gateway/status"
        will = Will(status, b"offline", 1, True)
        peer = await self._connected(f"gateway-{hall}", "gateway", 4, will=will, keep_alive=60)
        await peer.publish(status, b"online", 1, retain=True)
        for press in range(1, PRESSES + 1):
            setpoint = json.dumps({"celsius": 70, "strokes": 12 + press}).encode()
            await peer.publish(f"plant/{hall}/press-{press:02}/setpoint", setpoint, 1, retain=True)

        async def work() -> None:
            while True:
                await peer.publish(f"plant/{hall}/gateway/uptime", b'{"clients": 16}', 1, retain=True)
                await self._pause(5.0)

        return work

    async def _reader(self, name: str, username: str, filter: str, qos: int) -> Callable[[], Any]:
        peer = await self._connected(name, username)
        await peer.subscribe(filter, qos=qos)

        async def work() -> None:
            while True:
                await _take(peer)

        return work

    async def _archive(self) -> Callable[[], Any]:
        peer = await self._connected("archive", "archive", properties={c.RECEIVE_MAXIMUM: 8})
        await peer.subscribe("plant/#", qos=1)

        async def work() -> None:
            while True:
                await _take(peer)
                await self._pause(0.4)

        return work

    async def _dispatcher(self) -> None:
        peer = await self._connected("dispatcher", "logistics")
        for number in range(1, 1_000_000):
            order = json.dumps({"order": 4_700 + number, "gate": 1 + number % 5}).encode()
            await peer.publish("orders/truck-4/next", order, 1)
            await peer.publish("reports/shift", order, 1)
            await self._pause(20.0)

    async def _refused(self) -> None:
        while True:
            for name, username, password, code in (
                ("press-09-temperature", "press", b"of last year", WRONG_PASSWORD),
                ("forklift-2", "logistics", PASSWORD.encode(), BANNED),
            ):
                peer = await self.node.client(name, username=username, password=password, expect=code)
                await peer.close()
            visitor = await self._connected("press-07-display", "press")
            await visitor.publish("orders/truck-4/next", b"{}", 1, expect=None)
            await visitor.disconnect()
            await self._pause(15.0)

    async def _fail(self) -> None:
        """Let the web hook fail for half a minute of every two minutes."""
        while True:
            await self._pause(60.0)
            self.tickets.breaks = True
            await self._pause(30.0)
            self.tickets.breaks = False
            await self._pause(30.0)
