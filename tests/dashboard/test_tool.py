"""The client tool: MQTT over WebSocket from the page."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from taipan.broker.mqtt import constants as c
from tests.support.browser import DashboardNode, accessible
from tests.support.forms import HOSTILE, SHOWN, control, fault, row, send

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]


def part(page: Page, title: str) -> Locator:
    return page.locator("section").filter(has=page.get_by_role("heading", name=title, exact=True)).last


async def connected(page: Page, **values: object) -> None:
    await page.get_by_role("button", name="New connection").click()
    dialog = page.get_by_role("dialog")
    await send(dialog, **values)
    await expect(dialog).to_have_count(0)
    await expect(page.get_by_role("heading", name="connected")).to_be_visible()


async def test_a_connection_with_all_that_can_be_given(
    open_page: OpenPage, shared_node: DashboardNode, tmp_path: Path
) -> None:
    page = await open_page("/tool", role="viewer")
    await expect(page.get_by_text("No connections yet.")).to_be_visible()
    await page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    await expect(control(dialog, "url")).to_have_value(f"ws://127.0.0.1:{shared_node.ports['ws']}/mqtt")
    url = await control(dialog, "url").input_value()
    await send(dialog, url="127.0.0.1", clientid="", receiveMaximum="0", willTopic="last/#")
    await expect(fault(dialog, "url")).to_contain_text("Enter an address such as")
    await expect(fault(dialog, "clientid")).to_have_text("This field is required.")
    await expect(fault(dialog, "receiveMaximum")).to_have_text("Enter 1 or more.")
    await expect(fault(dialog, "willTopic")).to_contain_text("without + and #")
    await accessible(page)
    will = {"willTopic": "last/words", "willPayload": HOSTILE, "willQos": "1", "willRetain": True, "willDelay": "0"}
    await send(
        dialog, url=url, clientid="tool-1", username=HOSTILE, password="unasked", clean=False, expiry="60",
        keepalive="30", receiveMaximum="10", properties={"rack": "7"}, **will,
    )  # fmt: skip
    await expect(page.get_by_role("heading", name="connected")).to_be_visible()
    record = (await shared_node.api.get("/clients/tool-1")).data[0]
    assert (record["username"], record["proto_ver"], record["keepalive"], record["clean_start"]) == (
        HOSTILE,
        5,
        30,
        False,
    )
    await expect(page.get_by_text(SHOWN)).to_be_visible()

    # Subscriptions: by default, with all that can be given, wrong.
    subscribing, publishing = part(page, "Subscribe"), part(page, "Publish")
    await send(subscribing, filter="a/#/b")
    await expect(fault(subscribing, "filter")).to_contain_text("only as a whole level")
    await send(subscribing, filter="to/tool/+", qos="2", identifier="9", rap=True, rh="1")
    await expect(subscribing.locator("li")).to_contain_text("QoS 2")
    await send(subscribing, filter="own/#", qos="1", nl=False)
    await expect(subscribing.locator("li")).to_have_count(2)

    peer = await shared_node.client("peer")
    await peer.subscribe("from/tool", "last/words", qos=2)
    await send(publishing, topic="from/+", payload="zz", encoding="hex")
    await expect(fault(publishing, "topic")).to_contain_text("without + and #")
    await expect(fault(publishing, "payload")).to_contain_text("does not match the selected format")
    for qos in ("0", "1", "2"):
        await send(publishing, topic="from/tool", payload="ff00", encoding="hex", qos=qos)
        packet = await peer.expect_publish("from/tool", b"\xff\x00")
        assert packet.qos == int(qos)
    properties = {"contentType": "text/plain", "responseTopic": "to/tool/1", "correlation": "42", "expiry": "60"}
    await send(
        publishing, topic="from/tool", payload=HOSTILE, encoding="text", qos="1", retain=True,
        properties={"unit": "°C"}, **properties,
    )  # fmt: skip
    packet = await peer.expect_publish("from/tool", HOSTILE.encode(), 1)
    assert packet.properties[c.CONTENT_TYPE] == "text/plain" and packet.properties[c.RESPONSE_TOPIC] == "to/tool/1"
    assert packet.properties[c.CORRELATION_DATA] == b"42" and packet.properties[c.USER_PROPERTY] == [("unit", "°C")]

    # What comes, whatever it is, is text.
    for qos in (0, 1, 2):
        await peer.publish(
            "to/tool/1", f"{qos} {HOSTILE}\x00".encode(), qos=qos, properties={c.CORRELATION_DATA: b"\xff"}
        )
    came = page.locator("tbody tr").filter(has_text="to/tool/1")
    await expect(came).to_have_count(3)
    await expect(came.first).to_contain_text("<img src=x")
    await accessible(page)
    await came.first.get_by_role("button", name="Show").click()
    shown = page.get_by_role("dialog", name="Message")
    await expect(shown).to_contain_text(SHOWN)
    await expect(shown).to_contain_text('"subscriptionIdentifier":9')
    await shown.get_by_role("button", name="Hex").click()
    await accessible(page, (390,))
    await page.keyboard.press("Escape")
    await page.get_by_label("Topic contains…").fill("from/")
    await expect(came).to_have_count(0)
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Save as JSON lines").click()
    saved = tmp_path / "messages.jsonl"
    await (await download.value).save_as(saved)
    lines = [json.loads(line) for line in saved.read_text(encoding="utf-8").splitlines()]
    assert [(one["direction"], one["qos"]) for one in lines] == [("out", 0), ("out", 1), ("out", 2), ("out", 1)]
    assert lines[0]["payload_base64"] == "/wA=" and lines[3]["payload"] == HOSTILE
    assert lines[3]["properties"]["correlationData"] == "42"
    await page.get_by_label("Topic contains…").fill("")
    await page.get_by_role("button", name="Clear").click()
    await expect(page.get_by_text("No messages yet.")).to_be_visible()

    # Cut off: the will is published. Connected again, the session with its subscriptions is there.
    await page.get_by_role("button", name="Drop connection").click()
    await peer.expect_publish("last/words", HOSTILE.encode(), 1)
    await expect(page.get_by_role("heading", name="closed")).to_be_visible()
    await peer.publish("to/tool/2", b"waited", qos=1)
    await page.get_by_role("button", name="Connect again").click()
    await expect(row(page, "waited")).to_be_visible()
    await expect(subscribing.locator("li")).to_have_count(2)
    await subscribing.get_by_role("button", name="Unsubscribe").first.click()
    await expect(subscribing.locator("li")).to_have_count(1)
    # Who is thrown out reads why.
    assert (await shared_node.api.delete("/clients/tool-1")).code == 0
    await expect(page.get_by_role("heading", name="closed")).to_be_visible()
    await expect(page.get_by_role("alert")).to_contain_text("0x98")
    await accessible(page, (390,))
    await page.get_by_role("button", name="Remove").click()
    await expect(page.get_by_text("No connections yet.")).to_be_visible()


async def test_several_connections_and_a_refusal(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/tool")
    await connected(page, clientid="first", version="4")
    await connected(page, clientid=f"second {HOSTILE}", version="3")
    versions = {one["clientid"]: one["proto_ver"] for one in (await shared_node.api.get("/clients")).data}
    assert versions["first"] == 4 and versions[f"second {HOSTILE}"] == 3
    tabs = page.get_by_role("navigation", name="Connections").get_by_role("link")
    await expect(tabs).to_have_count(2)
    await tabs.first.click()
    await expect(control(part(page, "Publish"), "contentType")).to_have_count(0)
    await send(part(page, "Subscribe"))
    await tabs.last.click()
    await send(part(page, "Publish"), topic=HOSTILE, payload="from the second")
    await expect(row(page, "out")).to_contain_text(SHOWN)
    await tabs.first.click()
    await expect(row(page, "from the second")).to_contain_text(SHOWN)
    await page.go_back()
    await expect(row(page, "out")).to_have_count(1)
    # Other pages do not end them.
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Node").click()
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="MQTT client").click()
    await expect(tabs).to_have_count(2)
    await accessible(page, (390,))
    # One that is refused; a subscription that is refused.
    assert (await shared_node.api.post("/banned", {"who": "unwanted", "as": "clientid"})).code == 0
    await page.get_by_role("button", name="New connection").click()
    await send(page.get_by_role("dialog"), clientid="unwanted")
    await expect(page.get_by_role("heading", name="refused")).to_be_visible()
    await expect(page.get_by_role("alert")).to_be_visible()
    await accessible(page, (390,))
    rule = {"clientid": "third", "topic": "shut/#", "action": "sub", "access": "deny"}
    assert (await shared_node.api.post("/acl", rule)).code == 0
    await connected(page, clientid="third")
    await send(part(page, "Subscribe"), filter="shut/#")
    await expect(page.get_by_role("alert")).to_contain_text("Subscription to shut/# refused")
    await page.get_by_role("button", name="Disconnect").click()
    await expect(page.get_by_role("heading", name="closed")).to_be_visible()
    # A reload ends them all: they live in the tab.
    await page.reload()
    await expect(page.get_by_text("No connections yet.")).to_be_visible()
