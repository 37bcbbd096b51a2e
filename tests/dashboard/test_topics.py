"""Topics: the tree as it lives, who receives what, and which rule decides."""

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import DashboardNode, accessible
from tests.support.forms import HOSTILE, SHOWN, control, fault, row, send, submit

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
LONG = "x" * 65_000
"""Nearly the longest name there is."""


async def test_the_tree_lives(open_page: OpenPage, shared_node: DashboardNode) -> None:
    hostile = HOSTILE.replace("/", "")
    subscriber = await shared_node.client("subscriber")
    await subscriber.subscribe("house/+/lamp", "house/#", f"odd/{hostile}", qos=1)
    publisher = await shared_node.client("publisher")
    await publisher.publish("house/kitchen/lamp", b"on", retain=True)
    await publisher.publish(f"odd/{LONG}", b"far", retain=True)
    page = await open_page("/topics")
    await expect(row(page, "house")).to_contain_text("2")
    # A level that nobody subscribes to is there while something comes on it; of hostile text nothing is markup.
    await publisher.publish("unheard/of", f"{HOSTILE}\x00\x1b".encode())
    await publisher.publish("unheard", f"{HOSTILE}\x00\x1b".encode())
    alone = row(page, "unheard")
    await expect(alone).to_contain_text("messages only")
    await expect(page.locator(".pager")).to_contain_text("and 1 with messages only")
    # A row is a card of a few lines where the window is small.
    await page.set_viewport_size({"width": 390, "height": 844})
    box = await row(page, "house").bounding_box()
    assert box is not None and box["height"] < 100 and box["width"] < 390
    await page.set_viewport_size({"width": 1280, "height": 900})
    await expect(alone).to_contain_text(f"{SHOWN}␀␛"[:30])
    await page.get_by_role("link", name="house", exact=True).click()
    await expect(page.get_by_role("navigation", name="Current level")).to_contain_text("house")
    await expect(row(page, "kitchen")).to_contain_text("1")
    await publisher.publish("house/kitchen/lamp", b"off")
    await expect(row(page, "kitchen")).to_contain_text("/s")
    await page.get_by_role("searchbox").fill("kit")
    await expect(row(page, "kitchen")).to_be_visible()
    await expect(row(page, "#")).to_have_count(0)
    assert "level=kit" in page.url
    await page.reload()
    await expect(page.get_by_role("searchbox")).to_have_value("kit")
    await expect(row(page, "kitchen")).to_be_visible()
    await page.get_by_role("link", name="kitchen", exact=True).click()
    await expect(row(page, "lamp")).to_be_visible()
    await page.go_back()
    await expect(row(page, "kitchen")).to_be_visible()
    await page.go_forward()
    await row(page, "lamp").get_by_role("link", name="Details").click()
    await expect(control(page, "topic")).to_have_value("house/kitchen/lamp")
    await expect(row(page, "subscriber")).to_contain_text("house/+/lamp")
    await page.goto(f"{shared_node.url}/#/topics/tree?prefix=odd")
    await expect(page.get_by_text(SHOWN.replace("/", ""))).to_be_visible()
    await page.get_by_role("button", name="… 65,000").click()
    await expect(page.get_by_text(LONG)).to_have_count(1)
    await accessible(page)
    await page.goto(f"{shared_node.url}/#/topics/tree?prefix=none/here")
    await expect(page.get_by_text("This level has no sublevels.")).to_be_visible()


async def test_who_receives_a_topic(open_page: OpenPage, shared_node: DashboardNode) -> None:
    for number in (1, 2):
        member = await shared_node.client(f"member-{number}")
        await member.subscribe("$share/team/jobs/+")
    watcher = await shared_node.client(HOSTILE)
    await watcher.subscribe("jobs/#", qos=2)
    long = await shared_node.client(LONG)
    await long.subscribe("jobs/#")
    page = await open_page("/topics/topic", role="viewer")
    await expect(page.get_by_text("Enter a topic name.")).to_be_visible()
    await submit(page)
    await expect(fault(page, "topic")).to_have_text("This field is required.")
    await send(page, topic="jobs/#")
    await expect(fault(page, "topic")).to_contain_text("Without wildcards")
    await send(page, topic="jobs/one")
    await expect(row(page, "member-1")).to_contain_text("team")
    await expect(row(page, "member-2")).to_contain_text("$share/team/jobs/+")
    await expect(row(page, SHOWN)).to_contain_text("jobs/#")
    await expect(row(page, "… 65,000")).to_contain_text("jobs/#")
    await accessible(page)
    await send(page, topic="nobody/listens")
    await expect(page.get_by_text("This topic has no subscribers.")).to_be_visible()
    await page.go_back()
    await expect(row(page, "member-1")).to_be_visible()
    await page.get_by_role("link", name="Check access").click()
    await expect(control(page, "topic")).to_have_value("jobs/one")


async def test_which_rule_decides(open_page: OpenPage, shared_node: DashboardNode) -> None:
    await shared_node.client("lamp-1")
    api = shared_node.api
    rule = {"clientid": "lamp-1", "topic": "secret/#", "action": "pub", "access": "deny"}
    assert (await api.post("/acl", rule)).code == 0
    page = await open_page("/topics/who", role="viewer")
    await send(page, clientid="lamp-1")
    await expect(fault(page, "topic")).to_have_text("This field is required.")
    answer = page.get_by_role("status").filter(has_text="Decided by")
    await send(page, topic="secret/one")
    await expect(answer).to_contain_text("Denied")
    await expect(answer).to_contain_text("/acl/clientid/lamp-1")
    await accessible(page)
    await send(page, topic="open/one")
    await expect(answer).to_contain_text("Allowed")
    await expect(answer).to_contain_text("access.no_match")
    await page.go_back()
    await expect(answer).to_contain_text("Denied")
    await page.reload()
    await expect(answer).to_contain_text("Denied")
    # One that might come, with all that can be said of it; then without what only a publish has.
    everything = {
        "username": HOSTILE,
        "address": "10.1.2.3",
        "listener": "mqtt:tcp:tcp",
        "qos": "2",
        "retain": True,
        "ask": True,
    }
    await send(page, clientid="lamp-9", topic="secret/one", **everything)
    await expect(page.get_by_text("10.1.2.3")).to_be_visible()
    await expect(answer).to_contain_text("Allowed")
    assert "retain=true" in page.url and "qos=2" in page.url
    await send(page, action="subscribe", topic="secret/+")
    await expect(answer).to_contain_text("Allowed")
    assert "retain" not in page.url and "qos" not in page.url
    # What the node refuses.
    await page.goto(f"{shared_node.url}/#/topics/who?clientid=nobody&action=publish&topic=a")
    await expect(page.get_by_role("alert")).to_contain_text("no client nobody")
    await page.goto(f"{shared_node.url}/#/topics/who?clientid=x&address=nowhere&action=publish&topic=a")
    await expect(page.get_by_role("alert")).to_contain_text("nowhere")
    await page.goto(f"{shared_node.url}/#/topics/who?clientid=lamp-1&action=publish&topic=a/%23")
    await expect(page.get_by_role("alert").first).to_be_visible()
