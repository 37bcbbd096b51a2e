"""The requests on the pages of docs/api are sent as printed, and answered with the members that the pages show."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.gateway import kind_of
from taipan.broker.mqtt.constants import SESSION_EXPIRY_INTERVAL
from taipan.broker.observability.log_ring import ring
from tests.gateways.lwm2m_device import Device
from tests.support.api import ManagedNode, managed_node
from tests.support.configuration_file import KeptFile

from .test_monitor import pass_seconds

PAGES = sorted((Path(__file__).parents[2] / "docs" / "api").glob("*.md"))
EXAMPLE = re.compile(
    r"^```\ncurl -u \$TAIPAN (?:-H '[^']*' )?"
    r"(?:-X (?P<method>\w+) )?\"?\$API(?P<path>/[^\s\"]+)\"?(?: -d '(?P<body>.*?)')?\n```\n\n"
    r"```json\n(?P<answer>.*?)\n```$",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = {page.stem: list(EXAMPLE.finditer(page.read_text("utf-8"))) for page in PAGES}


def assert_has(actual: Any, shown: Any) -> None:
    """Every member that is shown is there, with a value of its type; of a list the first that fits."""
    if isinstance(shown, dict):
        assert isinstance(actual, dict) and set(shown) <= set(actual)
        for key, value in shown.items():
            assert_has(actual[key], value)
    elif isinstance(shown, list):
        assert isinstance(actual, list) and len(actual) >= len(shown)
        for one, other in zip(actual, shown, strict=False):
            assert_has(one, other)
    elif isinstance(shown, float):
        assert type(actual) in (int, float)  # a rate of 2.0 is written as 2
    else:
        assert type(actual) is type(shown) or (type(shown) is int and type(actual) is float)


def test_nearly_every_page_begins_with_an_example() -> None:
    without = {page for page, examples in EXAMPLES.items() if not examples}
    assert without == {"endpoints", "rules", "specification"}


async def _a_change(node: ManagedNode) -> None:
    app = {"app_id": "exporter", "name": "An exporter", "secret": "a long secret"}
    assert (await node.api.post("/apps", app)).code == 0
    assert (await node.api.put("/apps/exporter", {"name": "Another name", "status": True})).code == 0


async def _a_configuration_file(node: ManagedNode) -> None:
    KeptFile(Path(node.server.settings.node.data_dir) / "taipan.toml").use_in(node.management.operations)


async def _a_warning(node: ManagedNode) -> None:
    ring.add(["2026-10-01T14:03:11.000 WARNING taipan.broker.channel client_refused client_id=porch reason=banned"])


async def _a_message_that_waits(node: ManagedNode) -> None:
    peer = await node.client("porch")
    await peer.publish("$delayed/3600/door/1", b"open", qos=1)


async def _a_client_that_loses_messages(node: ManagedNode) -> None:
    truck = await node.client("truck-7", properties={SESSION_EXPIRY_INTERVAL: 3600})
    await truck.subscribe("plant/#", qos=1)
    await truck.disconnect()
    for number in range(3):
        body = {"topic": "plant/oslo/7", "payload": str(number), "qos": 1, "clientid": "c"}
        assert (await node.api.post("/mqtt/publish", body)).code == 0


async def _a_device_that_has_answered(node: ManagedNode) -> None:
    [listener] = [each for each in node.server.listeners if each.type == "lwm2m"]
    device = await Device.open(listener.bind, "pump-7")
    device.resources = {"/3/0/9": (0, b"87")}
    assert (await device.register()).dotted == "2.01"
    command = json.dumps({"reqID": 1, "msgType": "read", "data": {"path": "/3/0/9"}})
    body = {"clientid": "c", "topic": "lwm2m/pump-7/dn/x", "payload": command}
    assert (await node.api.post("/mqtt/publish", body)).code == 0
    while (await node.api.get("/lookup_cmd/pump-7?path=/3/0/9&msgType=read")).data["code"] != "2.05":
        pass
    device.close()


async def _what_the_history_shows(node: ManagedNode) -> None:
    porch = await node.client("porch-2")
    await porch.publish("nobody/reads", b"x")
    await pass_seconds(node, 3)


BEFORE = {
    "audit": _a_change,
    "configuration": _a_configuration_file,
    "delayed": _a_message_that_waits,
    "log_view": _a_warning,
    "lwm2m": _a_device_that_has_answered,
    "monitor": _what_the_history_shows,
    "top": _a_client_that_loses_messages,
}
"""What happens at the node before the requests of a page are sent."""
LISTENERS = [{"type": "tcp"}, {"type": "lwm2m", "name": "devices"}]


@pytest.mark.asyncio
@pytest.mark.parametrize("page", [page for page, examples in EXAMPLES.items() if examples])
async def test_the_examples(page: str) -> None:
    listeners = LISTENERS if page == "lwm2m" and kind_of("lwm2m") else LISTENERS[:1]
    zone = {"max_queued_messages": 1} if page == "top" else {}
    async with managed_node(node={"name": "taipan@127.0.0.1"}, listeners=listeners, zone=zone) as node:
        porch = await node.client("porch", properties={SESSION_EXPIRY_INTERVAL: 3600})
        await porch.subscribe("garden/#", qos=1)
        if page in BEFORE:
            await BEFORE[page](node)
        for each in EXAMPLES[page]:
            body = json.loads(each["body"]) if each["body"] else None
            reply = await node.api.ask(each["method"] or "GET", each["path"], body)
            assert reply.status == 200, reply.text
            assert_has(reply.json, json.loads(each["answer"]))
