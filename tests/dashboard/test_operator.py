"""An operator disconnects clients, bans them, silences alarms and publishes; other changes are an administrator's."""

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import Dashboard, DashboardNode, accessible
from tests.support.forms import confirmed, control, row, row_action, send

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
WIDTHS = (1440, 1024, 390)
ADMINISTRATORS = "Only administrators can do this."


async def go(page: Page, path: str) -> None:
    await page.goto(page.url.partition("#")[0] + f"#{path}")


async def test_what_an_operator_does(open_page: OpenPage, shared_node: DashboardNode) -> None:
    kicked, banned = await shared_node.client("to-kick"), await shared_node.client("to-ban")
    listener = await shared_node.client("listener")
    await listener.subscribe("from/operator")
    page = await open_page("/clients", role="operator")
    await expect(page.get_by_text("operator", exact=True)).to_be_visible()
    await row_action(row(page, "to-kick"), "Kick…")
    await confirmed(page, "Kick", "to-kick")
    await kicked.expect_disconnect(0x98)
    await go(page, "/clients/to-ban")
    await page.get_by_role("button", name="Ban", exact=True).click()
    await send(page.get_by_role("dialog"))
    await banned.expect_disconnect(0x98)
    await go(page, "/access/bans")
    await row(page, "to-ban").get_by_role("button", name="Lift ban").click()
    await confirmed(page, "Lift ban", "to-ban")
    await expect(page.get_by_text("No bans.")).to_be_visible()
    await accessible(page, WIDTHS)
    await go(page, "/retained")
    await page.get_by_role("button", name="Publish").click()
    await send(page.get_by_role("dialog"), topic="from/operator", payload="hello", retain=False)
    await listener.expect_publish("from/operator", b"hello")
    await go(page, "/trouble/targets?silence=node/*")
    dialog = page.get_by_role("dialog")
    await expect(control(dialog, "alarms")).to_have_value("node/*")
    await send(dialog)
    await expect(row(page, "node/*")).to_be_visible()
    await row(page, "node/*").get_by_role("button").click()
    await expect(row(page, "node/*")).to_have_count(0)


async def test_what_an_operator_does_not(open_page: OpenPage, shared_node: DashboardNode) -> None:
    await shared_node.client("stays")
    page = await open_page("/clients/stays", role="operator")
    for button in ("Subscribe", "Trace"):
        found = page.get_by_role("button", name=button).first
        await expect(found).to_be_disabled()
        await expect(found).to_have_attribute("title", ADMINISTRATORS)
    places = {
        "/access": "New user",
        "/access/rules": "New rule",
        "/access/apps": "New application",
        "/access/admins": "New dashboard user",
        "/trouble/targets": "New target",
    }
    for path, button in places.items():
        await go(page, path)
        await expect(page.get_by_role("button", name=button)).to_be_disabled()
    # A viewer reads who could do it.
    viewer = await open_page("/clients/stays", role="viewer")
    kick = viewer.get_by_role("button", name="Kick")
    await expect(kick).to_be_disabled()
    await expect(kick).to_have_attribute("title", "Only operators and administrators can do this.")
    await go(viewer, "/clients")
    item = await row_action(row(viewer, "stays"), "Kick…")
    await expect(item).to_be_disabled()


async def test_an_administrator_makes_an_operator(dashboard: Dashboard, open_page: OpenPage) -> None:
    page = await open_page("/access/admins")
    await page.get_by_role("button", name="New dashboard user").click()
    dialog = page.get_by_role("dialog")
    await send(dialog, username="olga", password="Operator-of-things-1", role="operator")
    await expect(row(page, "olga")).to_contain_text("operator")
    await accessible(page, WIDTHS)
    await row(page, "olga").get_by_role("button", name="Edit").click()
    await expect(control(dialog, "role")).to_have_value("operator")
    await send(dialog, role="viewer")
    await expect(row(page, "olga")).to_contain_text("viewer")
    await row(page, "olga").get_by_role("button", name="Delete").click()
    await confirmed(page, "Delete", "olga")


async def test_an_operator_in_chinese(open_page: OpenPage) -> None:
    page = await open_page("/access/bans", role="operator", locale="zh-CN")
    await expect(page.get_by_text("操作员", exact=True)).to_be_visible()
    await expect(page.get_by_role("button", name="添加黑名单")).to_be_enabled()
    await accessible(page, WIDTHS)
