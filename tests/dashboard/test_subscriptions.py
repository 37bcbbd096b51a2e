"""Subscriptions and shared groups: found by filters, made and ended, members with what each got."""

import re
from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import DashboardNode, accessible
from tests.support.forms import row_action

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
HOSTILE = "<b onclick=alert(1)>\u202etxt/+"


async def test_found_made_and_ended(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/subscriptions")
    await expect(page.get_by_text("No subscriptions yet.")).to_be_visible()
    lamp = await shared_node.client("lamp")
    await lamp.subscribe("garden/+/lamp", "house/#", "$share/workers/jobs/#", qos=1)
    await (await shared_node.client("odd")).subscribe(HOSTILE, qos=0)
    table = page.get_by_role("table", name="Subscriptions")
    topics = table.locator("tbody td:nth-child(2)")
    await expect(topics).to_have_count(4)
    await expect(table).to_contain_text("<b onclick=alert(1)>[RLO]txt/+")
    await accessible(page)
    await page.keyboard.press("/")
    await page.keyboard.type("garden/#")
    await expect(topics).to_have_text(["garden/+/lamp"])
    await page.get_by_label("Topic filter within").fill("garden/#/x")
    await expect(page.get_by_role("alert")).to_contain_text("_match_topic")
    await page.get_by_role("button", name="Clear filters").click()
    await page.get_by_label("Group is").fill("workers")
    await page.get_by_label("Topic filter is", exact=True).fill("jobs/#")
    await page.get_by_label("Client ID is").fill("lamp")
    await page.get_by_role("combobox", name="QoS").select_option("1")
    await expect(topics).to_have_text(["$share/workers/jobs/#"])
    await page.reload()
    await expect(topics).to_have_text(["$share/workers/jobs/#"])
    await page.get_by_role("combobox", name="QoS").select_option("2")
    await expect(page.get_by_text("No matching subscriptions.")).to_be_visible()
    await page.go_back()
    await expect(topics).to_have_text(["$share/workers/jobs/#"])
    await page.get_by_role("button", name="Clear filters").click()

    await expect(topics).to_have_count(4)
    await page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Subscribe").click()
    await expect(dialog.get_by_role("alert")).to_have_count(2)
    await dialog.get_by_label("Client ID").fill("nobody")
    await dialog.get_by_label("Topic filter").fill("made/by/hand")
    await dialog.get_by_label("QoS").select_option("2")
    await dialog.get_by_role("button", name="Subscribe").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("nobody")
    await accessible(page)
    await dialog.get_by_label("Client ID").fill("lamp")
    await dialog.get_by_role("button", name="Subscribe").click()
    row = table.get_by_role("row").filter(has_text="made/by/hand")
    await expect(row).to_contain_text("2")
    await row_action(row, "Unsubscribe…")
    await expect(dialog.get_by_role("listitem")).to_have_text("made/by/hand")
    await dialog.get_by_role("button", name="Unsubscribe").click()
    await expect(row).to_have_count(0)
    await lamp.ping()


async def test_shared_groups(open_page: OpenPage, shared_node: DashboardNode) -> None:
    first, second = await shared_node.client("m1"), await shared_node.client("m2")
    away = await shared_node.client("m3", properties={17: 600})
    for member in (first, second, away):
        await member.subscribe("$share/g/t/#", qos=0)
    await away.disconnect()
    await (await shared_node.client("q1")).subscribe("$queue/t/1", qos=0)
    publisher = await shared_node.client("publisher")
    for _ in range(5):
        await publisher.publish("t/1", b"x", 0)
    page = await open_page("/subscriptions")
    await page.get_by_role("link", name="Shared groups").click()
    table = page.get_by_role("table", name="Shared groups")
    group = table.get_by_role("row").filter(has_text="$share/g/t/#")
    await expect(group.get_by_role("cell")).to_have_text(["$share/g/t/#", "g", re.compile("^[a-z_]+$"), "3", "2", "5"])
    await accessible(page)
    await page.get_by_label("Group is").fill("$queue")
    await expect(table.locator("tbody tr")).to_have_count(1)
    await table.get_by_role("link", name="$share/$queue/t/1").click()
    members = page.get_by_role("table", name="Members")
    await expect(members.locator("tbody td").first).to_have_text("q1")
    await page.go_back()
    await page.get_by_label("Group is").fill("g")
    await table.get_by_role("link", name="$share/g/t/#").click()
    await page.reload()
    await expect(members.locator("tbody tr")).to_have_count(3)
    await expect(members.get_by_role("row").filter(has_text="m3")).to_contain_text("offline")
    got = [int(text) for text in await members.locator("tbody td:nth-child(4)").all_inner_texts()]
    assert sum(got) == 5
    await accessible(page)
    await page.get_by_role("link", name="All shared groups").click()
    await page.get_by_label("Full topic filter is").fill("none")
    await expect(page.get_by_text("No matching shared subscriptions.")).to_be_visible()


async def test_a_viewer_looks(open_page: OpenPage, shared_node: DashboardNode) -> None:
    await (await shared_node.client("seen")).subscribe("seen/#", qos=0)
    page = await open_page("/subscriptions?clientid=seen", role="viewer")
    await expect(page.get_by_role("table", name="Subscriptions")).to_contain_text("seen/#")
    await expect(page.get_by_role("button", name="Subscribe a client")).to_be_disabled()
    await expect(await row_action(page.get_by_role("row").filter(has_text="seen/#"), "Unsubscribe…")).to_be_disabled()
    await accessible(page, (1280,))
