"""Retained messages: by level, by filter, payloads in each form, published, deleted with a count first."""

import re
from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import DashboardNode, accessible
from tests.support.forms import confirmed, row, row_action

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
HOSTILE = "odd/<script>alert(1)</script>\u202etxt?#".rstrip("#")


async def test_by_level_down_to_a_payload(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/retained?prefix=garden")
    await expect(page.get_by_text("No retained messages below this level.")).to_be_visible()
    client = await shared_node.client("gardener")
    for topic, payload in (
        ("garden", b"itself"),
        ("garden/lamp/1", b'{"on": true, "by": "<img src=x onerror=alert(1)>"}'),
        ("garden/lamp/2", bytes(range(256))),
        ("garden/cbor", b"\xa1\x62on\xf5"),
        ("garden/large", b"<b>x</b>\n" * 7_500),
        ("/empty/first", b"1"),
        (HOSTILE, b"\xe2\x80\xaehidden\x00"),
    ):
        await client.publish(topic, payload, qos=1, retain=True)
    await page.get_by_role("link", name="All topics").click()
    table = page.get_by_role("table", name="Levels")
    row = table.get_by_role("row").filter(has_text="garden")
    await expect(row.get_by_role("cell")).to_have_text(["garden", "5", "3"])
    await accessible(page)
    await table.get_by_role("link", name="garden").click()
    await expect(page.get_by_text("This topic has a retained message.")).to_be_visible()
    await page.get_by_label("Level starts with").fill("la")
    await expect(table.locator("tbody td:first-child")).to_have_text(["lamp", "large"])
    await table.get_by_role("link", name="lamp").click()
    await page.reload()
    await table.get_by_role("link", name="1").click()
    payload = page.locator(".payload-text")
    await expect(payload).to_contain_text('"by": "<img src=x onerror=alert(1)>"')
    await expect(page.get_by_role("button", name="JSON")).to_have_attribute("aria-pressed", "true")
    await page.get_by_role("button", name="Hex").click()
    await expect(payload).to_contain_text("000000  7b 22 6f 6e")
    await accessible(page)
    await page.get_by_role("link", name="By level").last.click()
    await table.get_by_role("link", name="2").click()
    await expect(payload).to_contain_text("0000f0  f0 f1")
    await page.goto(f"{shared_node.url}/#/retained/message/garden%2Fcbor")
    await page.get_by_role("button", name="CBOR").click()
    await expect(payload).to_contain_text('"on": true')
    await page.goto(f"{shared_node.url}/#/retained/message/garden%2Flarge")
    await page.get_by_role("button", name="Show more").click()
    await expect(page.get_by_text("<b>x</b>").first).to_be_visible()
    await page.goto(f"{shared_node.url}/#/retained")
    await table.get_by_role("link", name="(empty)").click()
    await page.get_by_role("link", name="empty", exact=True).click()
    await page.get_by_role("link", name="first", exact=True).click()
    await expect(page).to_have_url(re.compile("message/%2Fempty%2Ffirst$"))
    await page.goto(f"{shared_node.url}/#/retained/list?_match_topic=odd%2F%23")
    await page.get_by_role("link", name="odd/<script>").click()
    await expect(payload).to_contain_text("[RLO]hidden␀")
    await expect(page.locator(".facts")).to_contain_text("odd/<script>alert(1)</script>[RLO]txt?")
    await accessible(page, (390,))


async def test_published_and_deleted(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/retained/list")
    table = page.get_by_role("table", name="Retained messages")
    dialog = page.get_by_role("dialog")
    await page.get_by_role("button", name="Publish a message").click()
    await dialog.get_by_role("button", name="Publish").click()
    await expect(dialog.get_by_role("alert")).to_have_text("This field is required.")
    await dialog.get_by_label("Topic", exact=True).fill("made/#")
    await dialog.get_by_role("button", name="Publish").click()
    await expect(dialog.get_by_role("alert")).to_be_visible()
    await expect(dialog.get_by_label("Retain", exact=True)).to_be_checked()
    for number in range(3):
        if number:
            await page.keyboard.press("n")
        await dialog.get_by_label("Topic", exact=True).fill(f"made/{number}")
        await dialog.get_by_label("Payload optional").fill(f"number {number}")
        await dialog.get_by_role("button", name="Publish").click()
        await expect(dialog).to_have_count(0)
    await page.get_by_label("Topic matches").fill("made/+")
    await expect(table.locator("tbody tr")).to_have_count(3)
    await row_action(table.get_by_role("row").filter(has_text="made/0"), "Delete…")
    await expect(dialog.get_by_role("listitem")).to_have_text("made/0")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(table.locator("tbody tr")).to_have_count(2)
    # One of them anew, with what it had.
    await table.get_by_role("link", name="made/1").click()
    await page.get_by_role("button", name="Publish again").click()
    await expect(dialog.get_by_label("Payload optional")).to_have_value("number 1")
    await dialog.get_by_label("Payload optional").fill("changed")
    await dialog.get_by_role("button", name="Publish").click()
    await expect(page.locator(".payload-text")).to_have_text("changed")
    # By filter: counted first.
    await page.goto(f"{shared_node.url}/#/retained?prefix=made")
    await page.get_by_role("button", name="Delete by filter").click()
    await expect(dialog.get_by_label("Topic filter")).to_have_value("made/#")
    await dialog.get_by_label("Topic filter").fill("made/#/x")
    await dialog.get_by_role("button", name="Count").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("is not a topic filter")
    await dialog.get_by_label("Topic filter").fill("nothing/here")
    await dialog.get_by_role("button", name="Count").click()
    await expect(dialog.get_by_role("status")).to_have_text("No retained messages match this filter.")
    await accessible(page)
    await dialog.get_by_label("Topic filter").fill("made/#")
    await dialog.get_by_role("button", name="Count").click()
    sure = page.get_by_role("dialog", name="Delete 2 retained messages?")
    await expect(sure.get_by_role("listitem")).to_have_text("made/#")
    await sure.get_by_role("button", name="Delete 2").click()
    await expect(page.get_by_text("No retained messages below this level.")).to_be_visible()
    assert (await shared_node.api.get("/retained", _match_topic="made/#")).data == []
    await page.goto(f"{shared_node.url}/#/retained/message/made%2F1")
    await expect(page.get_by_text("This topic has no retained message.")).to_be_visible()


async def test_a_viewer_looks(open_page: OpenPage, shared_node: DashboardNode) -> None:
    client = await shared_node.client("keeper")
    await client.publish("kept", b"x", qos=1, retain=True)
    page = await open_page("/retained/message/kept", role="viewer")
    await expect(page.locator(".payload-text")).to_have_text("x")
    for name in ("Publish a message", "Delete by filter", "Publish again", "Delete"):
        await expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    await accessible(page, (1280,))


async def test_delayed_messages(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/retained")
    await page.get_by_role("link", name="Delayed", exact=True).click()
    await expect(page.get_by_text("No delayed messages.")).to_be_visible()
    await accessible(page)
    publisher = await shared_node.client("<b>gardener</b>")
    await publisher.publish(f"$delayed/3600/{HOSTILE}", b"\x00\xff", qos=1)
    await publisher.publish("$delayed/7200/later", b'{"door": "open"}', qos=1)
    await page.reload()
    await expect(row(page, "<script>alert(1)</script>[RLO]txt?")).to_contain_text("<b>gardener</b>")
    await accessible(page)
    await row(page, "later").get_by_role("button", name="Show").click()
    await expect(page.get_by_role("dialog")).to_contain_text('"door"')
    await accessible(page)
    await page.keyboard.press("Escape")
    await page.get_by_label("Topic matches").fill("later/#")
    await expect(page.locator("tbody tr")).to_have_count(1)
    viewer = await open_page("/retained/delayed", role="viewer")
    await expect(row(viewer, "later").get_by_role("button", name="Delete")).to_be_disabled()
    await row(page, "later").get_by_role("button", name="Delete").click()
    await confirmed(page, "Delete", "later")
    await expect(page.get_by_text("No delayed messages.")).to_be_visible()
    (left,) = (await shared_node.api.get("/delayed")).data
    assert left["topic"] == HOSTILE
    assert (await shared_node.api.delete(f"/nodes/{left['node']}/delayed/{left['id']}")).code == 0
