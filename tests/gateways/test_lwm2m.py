"""LwM2M devices over UDP: registration, commands, observations and queue mode, next to MQTT clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.access.banned import CLIENT_ID, Ban
from taipan.broker.gateway import GatewayLoadError, kind_of
from taipan.broker.gateways.lwm2m.gateway import GATEWAY
from tests.gateways.lwm2m_device import (
    ACCEPT,
    BLOCK1,
    CON,
    DELETE,
    FORMAT,
    GET,
    NON,
    OBSERVE,
    POST,
    PUT,
    QUERY,
    RST,
    Coap,
    Device,
)
from tests.support.api import ManagedNode, managed_node
from tests.support.patience import patience
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio]

TLV = 11_542
QUICK = {"ack_timeout": 0.1, "max_retransmit": 1, "ack_random_factor": 1.0}


class Devices:
    def __init__(self) -> None:
        self._all: list[Device] = []

    async def open(self, node: ManagedNode, endpoint: str = "pump-7") -> Device:
        device = await Device.open(listener_of(node).bind, endpoint)
        self._all.append(device)
        return device

    async def registered(self, node: ManagedNode, endpoint: str = "pump-7", *query: str,
                         objects: bytes = b"</1/0>,</3/0>") -> Device:  # fmt: skip
        device = await self.open(node, endpoint)
        reply = await device.register(objects, *query)
        assert reply.dotted == "2.01"
        return device

    async def close(self) -> None:
        for device in self._all:
            device.close()
        await asyncio.sleep(0)


def listener_of(node: ManagedNode) -> Any:
    [listener] = [each for each in node.server.listeners if each.type == "lwm2m"]
    return listener


@pytest_asyncio.fixture
async def devices() -> AsyncIterator[Devices]:
    made = Devices()
    yield made
    await made.close()


def start(gateway: dict[str, object] | None = None, **settings: Any) -> Any:
    assert kind_of("lwm2m") is not None
    own = settings.pop("listener", {})
    listeners = [{"type": "tcp"}, {"type": "lwm2m", "name": "devices", "gateway": gateway or {}, **own}]
    return managed_node(listeners=listeners, **settings)


class Watch:
    """An MQTT client that sends commands to a device and receives its messages."""

    def __init__(self, peer: Any, endpoint: str = "pump-7") -> None:
        self.peer = peer
        self.endpoint = endpoint

    @classmethod
    async def open(cls, node: ManagedNode, endpoint: str = "pump-7") -> "Watch":
        peer = await node.client("watch")
        await peer.subscribe(f"lwm2m/{endpoint}/up/#", qos=0)
        return cls(peer, endpoint)

    async def hear(self, name: str = "resp") -> dict[str, Any]:
        packet = await self.peer.expect_publish(f"lwm2m/{self.endpoint}/up/{name}")
        found: dict[str, Any] = json.loads(packet.payload)
        return found

    async def send(self, kind: str, number: int = 1, topic: str = "dn/dm", **data: Any) -> None:
        payload = json.dumps({"reqID": number, "msgType": kind, "data": data}).encode()
        await self.peer.publish(f"lwm2m/{self.endpoint}/{topic}", payload, 0)

    async def ask(self, kind: str, **data: Any) -> dict[str, Any]:
        await self.send(kind, **data)
        found = await self.hear()
        assert found["msgType"] == kind and found["reqID"] == 1
        answer: dict[str, Any] = found["data"]
        return answer


async def test_the_life_of_a_registration(devices: Devices) -> None:
    """Register, update, deregister: the answers of the node, the messages of MQTT, and the client record."""
    async with start() as node:
        watch = await Watch.open(node)
        device = await devices.open(node)
        reply = await device.register(b'</lwm2m>;rt="oma.lwm2m";ct=11543,</lwm2m/1/0>,</lwm2m/3/0>', "b=U", "sms=1")
        assert (reply.dotted, device.location) == ("2.01", "/rd/pump-7")
        record = {
            "ep": "pump-7", "lt": 300, "lwm2m": "1.0", "b": "U", "sms": "1", "alternatePath": "/lwm2m",
            "objectList": ["/1/0", "/3/0"],
        }  # fmt: skip
        assert await watch.hear() == {"msgType": "register", "data": record}
        [row] = (await node.api.get("/clients?proto_name=LwM2M")).data
        assert (row["clientid"], row["proto_name"], row["proto_ver"]) == ("pump-7", "LwM2M", 1)
        assert (row["ip_address"], row["port"], row["keepalive"]) == ("127.0.0.1", device.port, 300)
        assert (await node.api.get("/clients?proto_name=MQTT")).data[0]["clientid"] == "watch"
        [subscription] = (await node.api.get("/subscriptions/pump-7")).data
        assert (subscription["topic"], subscription["qos"]) == ("lwm2m/pump-7/dn/#", 0)
        assert (await device.update("lt=600")).dotted == "2.04"
        assert (await device.update(objects=b"</lwm2m/3/0>,</lwm2m/4/0>")).dotted == "2.04"
        # The first update has no list of objects: it is not published.
        changed = record | {"lt": 600, "objectList": ["/lwm2m/3/0", "/lwm2m/4/0"], "alternatePath": "/"}
        assert await watch.hear() == {"msgType": "update", "data": changed}
        assert (await device.ask(DELETE, device.location)).dotted == "2.02"
        await until(lambda: node.server.broker.sessions.get("pump-7") is None)
        assert (await device.update()).dotted == "4.04"
        assert listener_of(node).refused == {}


async def test_updates_are_published_always_if_that_is_configured(devices: Devices) -> None:
    async with start({"update_msg_publish_condition": "always"}) as node:
        watch = await Watch.open(node)
        device = await devices.registered(node)
        await watch.hear()
        await device.update()
        assert (await watch.hear())["msgType"] == "update"


async def test_a_lifetime_expires_unless_it_is_updated(devices: Devices) -> None:
    async with start() as node:
        await node.stand_still()
        device = await devices.registered(node, "pump-7", "lt=100")
        await node.pass_time(80)
        device.resources["/3/0/0"] = 0, b"x"
        assert (await device.update()).dotted == "2.04"
        await node.pass_time(80)
        assert node.server.broker.sessions.get("pump-7") is not None
        # Other messages do not prolong it.
        assert (await device.ask(POST, "/rd/other")).dotted == "4.04"
        for seconds in (30, 1):
            await node.pass_time(seconds)
        await until(lambda: node.server.broker.sessions.get("pump-7") is None)
        assert listener_of(node).shutdown_count == {"keepalive_timeout": 1}
        assert (await device.update()).dotted == "4.04"


@pytest.mark.parametrize(
    "query, code",
    [(("ep=",), "4.00"), (("ep=a/b",), "4.00"), (("lt=0",), "4.00"), (("lt=86401",), "4.00"), (("lwm2m=2.0",), "4.12")],
)
async def test_registrations_that_are_refused(devices: Devices, query: tuple[str, ...], code: str) -> None:
    async with start() as node:
        device = await devices.open(node)
        assert (await device.register(b"</3/0>", *query)).dotted == code
        assert listener_of(node).refused == {"registration_refused": 1}
        assert (await device.register()).dotted == "2.01"


async def test_other_requests_of_a_device(devices: Devices) -> None:
    async with start() as node:
        device = await devices.registered(node)
        for code, path, answer in (
            (GET, "/rd", "4.05"), (GET, "/rd/pump-7", "4.05"), (POST, "/bs", "4.04"), (POST, "/rd/other", "4.04"),
            (POST, "/rd/pump-7/x", "4.04"), (DELETE, "/rd/other", "4.04"),
        ):  # fmt: skip
            assert (await device.ask(code, path)).dotted == answer
        assert (await device.update("lt=x")).dotted == "4.00"
        device.transport.sendto(b"\xff\xff")
        await until(lambda: listener_of(node).refused.get("malformed_datagram") == 1)
        assert node.server.broker.sessions.get("pump-7") is not None


async def test_commands_and_their_answers(devices: Devices) -> None:
    async with start() as node:
        watch = await Watch.open(node)
        device = await devices.registered(node)
        await watch.hear()
        device.resources = {
            "/3/0/0": (0, b"Open Mobile Alliance"),
            "/3/0": (TLV, b"\xc1\x09\x57\x86\x06\x41\x00\x01\x41\x01\x05"),
            "/5/0/0": (42, b"\xff\x00"),
            "/1/0": (11_543, b'{"bn":"/1/0/","e":[{"n":"1","v":300},{"n":"6","bv":true}]}'),
        }
        answer = await watch.ask("read", path="/3/0/0")
        assert answer == {
            "reqPath": "/3/0/0", "code": "2.05", "codeMsg": "content",
            "content": [{"path": "/3/0/0", "value": "Open Mobile Alliance"}],
        }  # fmt: skip
        request = await device.asked()
        assert (request.kind, request.code, request.path, request.payload) == (CON, GET, "/3/0/0", b"")
        assert (await watch.ask("read", path="/3/0"))["content"] == [
            {"path": "/3/0/9", "value": 87}, {"path": "/3/0/6/0", "value": 1}, {"path": "/3/0/6/1", "value": 5},
        ]  # fmt: skip
        assert (await watch.ask("read", path="/5/0/0"))["content"] == [{"path": "/5/0/0", "value": "/wA="}]
        assert (await watch.ask("read", path="1/0"))["content"] == [
            {"path": "/1/0/1", "value": 300}, {"path": "/1/0/6", "value": True},
        ]  # fmt: skip
        assert (await watch.ask("read", path="/9/0"))["code"] == "4.04"
        device.resources["/3"] = 40, b"</3/0>;dim=8,</3/0/1>"
        assert (await watch.ask("discover", path="/3"))["content"] == ["</3/0>;dim=8", "</3/0/1>"]
        request = await device.asked(lambda each: each.path == "/3")
        assert request.number(ACCEPT) == 40
        changed = {"code": "2.04", "codeMsg": "changed"}
        assert await watch.ask("write", path="/3/0/13", type="Time", value=1000) == {"reqPath": "/3/0/13"} | changed
        request = await device.asked()
        assert (request.code, request.path, request.payload) == (PUT, "/3/0/13", b"\xc2\x0d\x03\xe8")
        assert request.number(FORMAT) == TLV
        rows = [{"path": "14", "type": "String", "value": "+1"}, {"path": "15", "type": "String", "value": "x"}]
        assert await watch.ask("write", basePath="/3/0", content=rows) == {"reqPath": "/3/0"} | changed
        request = await device.asked()
        assert (request.code, request.path, request.payload) == (POST, "/3/0", b"\xc2\x0e+1\xc1\x0fx")
        assert await watch.ask("write-attr", path="/3/0/9", pmin=1, gt=5.5) == {"reqPath": "/3/0/9"} | changed
        request = await device.asked()
        assert (request.code, request.all(QUERY), request.payload) == (PUT, [b"pmin=1", b"gt=5.5"], b"")
        assert await watch.ask("execute", path="/3/0/4", args="0") == {"reqPath": "/3/0/4"} | changed
        request = await device.asked()
        assert (request.code, request.path, request.payload, request.number(FORMAT)) == (POST, "/3/0/4", b"0", 0)
        device.codes[POST, "/2"] = 0x41
        rows = [{"path": "/1/0", "type": "Integer", "value": 3}]
        assert (await watch.ask("create", basePath="/2", content=rows))["code"] == "2.01"
        request = await device.asked()
        assert (request.path, request.payload) == ("/2", b"\x03\x01\xc1\x00\x03")
        assert (await watch.ask("delete", path="/2/1"))["code"] == "2.02"
        request = await device.asked()
        assert (request.code, request.path) == (DELETE, "/2/1")
        device.codes[PUT, "/3/0/13"] = 0x85
        answer = await watch.ask("write", path="/3/0/13", value=1)
        assert (answer["code"], answer["codeMsg"]) == ("4.05", "method_not_allowed")


async def test_bad_commands_are_answered_and_reach_no_device(devices: Devices) -> None:
    async with start() as node:
        watch = await Watch.open(node)
        device = await devices.registered(node)
        await watch.hear()
        for payload in (b"", b"{", b"[]", b'{"msgType":"fly","data":{}}', b'{"msgType":"read","data":{}}', b"\xff"):
            await watch.peer.publish("lwm2m/pump-7/dn/x", payload, 0)
            answer = await watch.hear()
            assert (answer["data"]["code"], answer["data"]["codeMsg"]) == ("4.00", "bad_request")
            assert answer["data"]["reason"]
        assert device.requests.empty()


async def test_paths_below_an_alternate_path(devices: Devices) -> None:
    async with start() as node:
        watch = await Watch.open(node)
        device = await devices.registered(node, objects=b'</lwm2m>;rt="oma.lwm2m",</lwm2m/3/0>')
        await watch.hear()
        device.resources["/lwm2m/3/0/9"] = 0, b"87"
        answer = await watch.ask("read", path="/3/0/9")
        assert answer["content"] == [{"path": "/3/0/9", "value": 87}]


async def test_an_answer_that_comes_later(devices: Devices) -> None:
    """An empty acknowledgement is published as ack; the answer follows as a message of its own."""
    async with start() as node:
        watch = await Watch.open(node)
        device = await devices.registered(node)
        await watch.hear()
        device.separate = True
        device.resources["/3/0/9"] = 0, b"87"
        await watch.send("read", path="/3/0/9")
        assert await watch.hear() == {"reqID": 1, "msgType": "ack"}
        assert (await watch.hear())["data"]["content"][0]["value"] == 87


async def test_large_answers_and_large_values_come_in_blocks(devices: Devices) -> None:
    async with start() as node:
        watch = await Watch.open(node)
        device = await devices.registered(node)
        await watch.hear()
        device.resources["/3/0/0"] = 0, b"0123456789" * 500
        answer = await watch.ask("read", path="/3/0/0")
        assert answer["content"][0]["value"] == "0123456789" * 500


@pytest.mark.parametrize(("largest", "blocks"), [(6, 5), (4, 17)])
async def test_a_large_value_is_written_in_blocks(devices: Devices, largest: int, blocks: int) -> None:
    """RFC 7959, section 2.3: after the first block of 1024 bytes, those of the size that the device asks for."""
    async with start() as node:
        watch = await Watch.open(node)
        device = await devices.registered(node)
        await watch.hear()
        device.largest = largest
        value = "".join(f"{number:05}" for number in range(1000))
        answer = await watch.ask("write", path="/3/0/14", type="String", value=value)
        assert (answer["code"], answer["codeMsg"]) == ("2.04", "changed")
        assert value.encode() in device.written["/3/0/14"]
        parts = [(await device.asked()).number(BLOCK1) for _ in range(device.requests.qsize())]
        assert len(parts) == blocks and [part >> 3 & 1 for part in parts] == [1] * (blocks - 1) + [0]


async def test_a_large_value_that_the_device_refuses(devices: Devices) -> None:
    async with start() as node:
        watch = await Watch.open(node)
        device = await devices.registered(node)
        await watch.hear()
        device.codes[PUT, "/3/0/14"] = 0x8D  # 4.13
        answer = await watch.ask("write", path="/3/0/14", type="String", value="x" * 5000)
        assert answer["code"] == "4.13" and device.requests.qsize() == 1
        del device.codes[PUT, "/3/0/14"]
        assert (await watch.ask("write", path="/3/0/14", type="String", value="y"))["code"] == "2.04"


async def test_observe_notify_and_cancel(devices: Devices) -> None:
    async with start() as node:
        watch = await Watch.open(node)
        device = await devices.registered(node)
        await watch.hear()
        device.resources["/3/0/9"] = 0, b"87"
        answer = await watch.ask("observe", path="/3/0/9")
        assert answer["content"] == [{"path": "/3/0/9", "value": 87}]
        begun = await device.asked()
        assert begun.number(OBSERVE) == 0
        for kind, payload in ((NON, b"86"), (CON, b"85")):
            device.notify("/3/0/9", 0, payload, kind)
            found = await watch.hear("notify")
            assert (found["msgType"], found["reqID"]) == ("notify", 1)
            assert found["data"]["content"] == [{"path": "/3/0/9", "value": int(payload)}]
            assert found["data"]["reqPath"] == "/3/0/9"
        assert found["seqNum"] == 3
        assert (await device.replies.get()).kind == 2  # the acknowledgement of the confirmable one
        assert (await watch.ask("cancel-observe", path="/3/0/9"))["code"] == "2.05"
        cancelled = await device.asked()
        assert (cancelled.number(OBSERVE), cancelled.token) == (1, begun.token)
        assert device.observers == {}
        device.observers["/3/0/9"] = begun.token
        mid = device.notify("/3/0/9", 0, b"84", CON)
        await until(lambda: mid in device.resets)
        assert (await watch.ask("cancel-observe", path="/3/0/9"))["code"] == "2.05"


async def test_objects_are_observed_without_a_command(devices: Devices) -> None:
    async with start({"auto_observe": True}) as node:
        watch = await Watch.open(node)
        device = await devices.open(node)
        device.resources = {"/3/0": (TLV, b"\xc1\x09\x57"), "/1/0": (TLV, b"\xc1\x01\x05"), "/4/0": (TLV, b"")}
        await device.register()
        assert (await watch.hear())["msgType"] == "register"
        found = [await watch.hear(), await watch.hear()]
        assert [(each["msgType"], each["data"]["reqPath"]) for each in found] == [
            ("observe", "/1/0"),
            ("observe", "/3/0"),
        ]
        await device.update(objects=b"</1/0>,</3/0>,</4/0>")
        assert (await watch.hear())["msgType"] == "update"
        assert (await watch.hear())["data"]["reqPath"] == "/4/0"
        device.notify("/3/0", TLV, b"\xc1\x09\x56")
        assert (await watch.hear("notify"))["data"]["content"] == [{"path": "/3/0/9", "value": 86}]
    async with start({"auto_observe": ["/3/0/9", "/6"]}) as node:
        watch = await Watch.open(node)
        device = await devices.open(node)
        device.resources = {"/3/0/9": (0, b"87")}
        await device.register()
        await watch.hear()
        assert (await watch.hear())["data"]["reqPath"] == "/3/0/9"
        assert (await device.asked()).path == "/3/0/9" and device.requests.empty()


async def test_a_device_that_does_not_answer_stays_registered(devices: Devices) -> None:
    async with start(QUICK) as node:
        watch = await Watch.open(node)
        device = await devices.registered(node)
        await watch.hear()
        device.answers = False
        await watch.send("read", 1, path="/3/0/0")
        await watch.send("read", 2, path="/3/0/1")
        for number in (1, 2):
            answer = await watch.hear()
            assert (answer["reqID"], answer["data"]["code"]) == (number, "5.04")
            assert answer["data"]["codeMsg"] == "gateway_timeout"
        assert listener_of(node).refused["no_answer"] == 2
        assert (await device.update()).dotted == "2.04"
        await watch.send("read", 3, path="/3/0/2")
        request = await device.asked(lambda each: each.path == "/3/0/2")
        device.send(Coap(RST, 0, request.mid))
        assert (await watch.hear())["data"]["codeMsg"] == "bad_gateway"


async def test_queue_mode(devices: Devices) -> None:
    """Commands for a device that sleeps wait for its next message, and then come 100 ms apart, in order."""
    async with start({"qmode_time_window": 20}) as node:
        watch = await Watch.open(node)
        await node.stand_still()
        device = await devices.registered(node, "pump-7", "b=UQ")
        await watch.hear()
        device.resources["/3/0/9"] = 0, b"87"
        assert (await watch.ask("read", path="/3/0/9"))["code"] == "2.05"
        await device.asked()
        await node.pass_time(30)
        for number in range(3):
            await watch.send("read", number, path="/3/0/9")
        await until(lambda: len(conversation(node)._pending) == 3)
        assert device.requests.empty()
        await device.update()
        await device.asked()
        await asyncio.sleep(0.05)
        assert device.requests.empty()  # the others come later
        for _ in range(2):
            await node.pass_time(0.2)
            await device.asked()
        assert [(await watch.hear())["reqID"] for _ in range(3)] == [0, 1, 2]
        assert len(conversation(node)._pending) == 0


async def test_a_device_that_falls_asleep_before_its_commands_are_sent(devices: Devices) -> None:
    """The command that it does not answer is answered with 5.04; the others wait until its next message."""
    async with start(QUICK | {"ack_timeout": 0.3, "qmode_time_window": 20}) as node:
        watch = await Watch.open(node)
        device = await devices.registered(node, "pump-7", "b=UQ")
        await watch.hear()
        device.resources["/3/0/9"] = 0, b"87"
        device.answers = False
        for number in range(4):
            await watch.send("read", number, path="/3/0/9")
        answer = await watch.hear()  # it is lost: from now on, the device is asleep
        assert (answer["reqID"], answer["data"]["code"]) == (0, "5.04")
        await asyncio.sleep(0.5)
        await until(lambda: conversation(node)._pending.waiting == 3)
        await device.update()
        answer = await watch.hear()
        assert (answer["reqID"], answer["data"]["code"]) == (1, "5.04")
        await asyncio.sleep(0.5)
        assert conversation(node)._pending.waiting == 2
        device.answers = True
        await device.update()
        for number in (2, 3):
            answer = await watch.hear()
            assert (answer["reqID"], answer["data"]["code"]) == (number, "2.05")


async def test_a_device_that_wakes_up_while_its_command_is_being_repeated(devices: Devices) -> None:
    """Its update shows that it is awake: the command is sent again at once, not when its next repetition is due."""
    async with start({"ack_timeout": 1.0, "ack_random_factor": 1.0}) as node:
        watch = await Watch.open(node)
        device = await devices.registered(node, "pump-7", "b=UQ")
        await watch.hear()
        device.resources["/3/0/9"] = 0, b"87"
        assert (await watch.ask("read", path="/3/0/9"))["code"] == "2.05"  # its address is proved
        await device.asked()
        await node.stand_still()
        device.answers = False  # it sleeps
        await watch.send("read", 1, path="/3/0/9")
        await device.asked()
        await device.update()
        assert device.repeated == 0  # the first acknowledgement may be on its way
        for number in (1, 2, 3):
            await node.pass_time(2.0**number)
            await until(lambda number=number: device.repeated == number)
        device.answers = True
        await device.update()
        answer = await watch.hear()
        assert (answer["reqID"], answer["data"]["code"]) == (1, "2.05")
        assert device.repeated == 4


def conversation(node: ManagedNode) -> Any:
    [device] = listener_of(node).gateway_shared._devices.values()
    return device


async def test_limits_of_a_device(devices: Devices) -> None:
    limits = {"max_queued_commands": 2, "qmode_time_window": 0, "max_observations": 1, "max_queued_bytes": 4000}
    async with start(limits) as node:
        watch = await Watch.open(node)
        device = await devices.registered(node, "pump-7", "b=UQ")
        await watch.hear()
        await watch.send("read", 8, path="/3/0/9", filler="x" * 4000)
        answer = await watch.hear()
        assert (answer["reqID"], answer["data"]["code"]) == (8, "5.03") and "max_queued_bytes" in answer["data"][
            "reason"
        ]
        for number in range(3):
            await watch.send("observe", number, path=f"/3/0/{number}")
        answer = await watch.hear()
        assert (answer["reqID"], answer["data"]["code"]) == (2, "5.03")
        assert "max_queued_commands" in answer["data"]["reason"]
        device.resources = {f"/3/0/{number}": (0, b"1") for number in range(3)}
        await device.update()
        assert (await watch.hear())["data"]["code"] == "2.05"
        answer = await watch.hear()
        assert answer["reqID"] == 1 and "max_observations" in answer["data"]["reason"]
        assert listener_of(node).refused == {"command_dropped": 2, "observation_refused": 1}
        # What has no answer when the device leaves is counted.
        await watch.send("read", path="/3/0/0")
        await until(lambda: len(conversation(node)._pending) == 1)
        assert (await node.api.delete("/clients/pump-7")).code == 0
        await until(lambda: listener_of(node).refused.get("commands_unanswered") == 1)


async def test_an_answer_that_is_larger_than_a_packet_may_be(devices: Devices) -> None:
    async with start(zone={"max_packet_size": 2000}) as node:
        watch = await Watch.open(node)
        device = await devices.registered(node)
        await watch.hear()
        device.resources["/3/0/0"] = 0, b"x" * 1900
        await watch.send("read", 5, path="/3/0/0")
        answer = await watch.hear()
        assert (answer["reqID"], answer["data"]["code"]) == (5, "4.13")
        assert listener_of(node).refused == {"answer_too_large": 1}
        assert (await device.update()).dotted == "2.04"


async def test_a_registration_from_a_new_address_and_another_device_at_an_address(devices: Devices) -> None:
    async with start() as node:
        watch = await Watch.open(node)
        first = await devices.registered(node)
        second = await devices.registered(node)
        assert (await first.update()).dotted == "4.04"
        assert (await second.update()).dotted == "2.04"
        # The same device registers again: its observations are over.
        second.resources["/3/0/9"] = 0, b"87"
        await watch.hear()
        await watch.hear()
        await watch.ask("observe", path="/3/0/9")
        assert (await second.register()).dotted == "2.01"
        assert (await watch.hear())["msgType"] == "register"
        mid = second.notify("/3/0/9", 0, b"86", CON)
        await until(lambda: mid in second.resets)
        # Another device has the address.
        second.endpoint = "other"
        assert (await second.register()).dotted == "2.01"
        await until(lambda: node.server.broker.sessions.get("pump-7") is None)
        assert node.server.broker.sessions.get("other") is not None


async def test_users_rules_bans_and_kicks(devices: Devices) -> None:
    rules = [{"allow": False, "topics": ["lwm2m/no/dn/#"]}]
    async with start(access={"rules": rules}) as node:
        device = await devices.registered(node, "no")
        await until(lambda: listener_of(node).refused == {"command_subscription_refused": 1})
        assert (await node.api.delete("/clients/no")).code == 0
        await until(lambda: node.server.broker.sessions.get("no") is None)
        assert (await device.update()).dotted == "4.04"
        node.server.banned.put(Ban(CLIENT_ID, "no", "tester", "", 0, 2**40))
        assert (await device.register()).dotted == "4.03"
    async with start(zone={"allow_anonymous": False}) as node:
        device = await devices.open(node)
        assert (await device.register()).dotted == "4.03"


async def test_a_retained_command_comes_after_each_registration(devices: Devices) -> None:
    async with start() as node:
        watch = await Watch.open(node)
        payload = json.dumps({"reqID": 1, "msgType": "read", "data": {"path": "/3/0/9"}}).encode()
        await watch.peer.publish("lwm2m/pump-7/dn/r", payload, 0, retain=True)
        device = await devices.open(node)
        device.resources["/3/0/9"] = 0, b"87"
        await device.register()
        assert [(await watch.hear())["msgType"] for _ in range(2)] == ["register", "read"]


async def test_topics_and_the_mountpoint(devices: Devices) -> None:
    table = {"mountpoint": "site/%a/%e/", "topics": {"command": "do", "response": "said", "register": "hello"}}
    async with start(table) as node:
        peer = await node.client("m")
        await peer.subscribe("site/#", qos=0)
        device = await devices.registered(node)
        await peer.expect_publish("site/127.0.0.1/pump-7/hello")
        device.resources["/3/0/9"] = 0, b"87"
        await peer.publish("site/127.0.0.1/pump-7/do", b'{"msgType":"read","data":{"path":"/3/0/9"}}', 0)
        await peer.expect_publish("site/127.0.0.1/pump-7/do")
        await peer.expect_publish("site/127.0.0.1/pump-7/said")


@pytest.mark.parametrize(
    "table, text",
    [
        ({"topics": {"response": "dn/x"}}, "answers would be commands"),
        ({"topics": {"notify": "up/#"}}, "not a topic name"), ({"topics": {"command": "a/#/b"}}, "not a topic filter"),
        ({"auto_observe": ["/x"]}, "auto_observe"), ({"xml_dir": "/does/not/exist"}, "xml_dir"),
        ({"lifetime_min": 10, "lifetime_max": 5}, "lifetime_min"), ({"password": "x"}, "needs a username"),
        ({"unknown": 1}, "unknown"),
    ],
)  # fmt: skip
async def test_settings_that_are_refused(table: dict[str, object], text: str) -> None:
    with pytest.raises(GatewayLoadError, match=text):
        GATEWAY.settings_from(table)


async def test_a_forged_address_gets_little(devices: Devices) -> None:
    """An address that does not answer is sent no more than it has sent, and 64 bytes for its proof."""
    async with start(QUICK | {"max_retransmit": 4, "ack_timeout": 0.05}) as node:
        watch = await Watch.open(node)
        device = await devices.open(node)
        device.answers = False
        await device.register()
        sent = len(Coap(CON, POST, 1, b"12", [(11, b"rd"), (12, b"("), (15, b"ep=pump-7"), (15, b"lt=300"),
                                              (15, b"lwm2m=1.0")], b"</1/0>,</3/0>").encoded())  # fmt: skip
        got = 0

        def count(data: bytes, _: Any) -> None:
            nonlocal got
            got += len(data)

        device.datagram_received = count  # type: ignore[method-assign]
        for number in range(20):
            await watch.send("write", number, path="/3/0/14", value="x" * 500)
        await watch.peer.subscribe("end")
        await asyncio.sleep(patience(1.5))
        assert 0 < got <= sent + 64
