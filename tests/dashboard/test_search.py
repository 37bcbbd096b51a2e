"""The search over everything: by the keyboard to a client, a topic, a rule, a setting and a page."""

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Locator, Page, expect

from tests.support.browser import DashboardNode, accessible
from tests.support.forms import HOSTILE, SHOWN

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]


async def search(page: Page, text: str) -> Locator:
    """Open the search by its keys, type, and return the results."""
    await page.keyboard.press("Control+k")
    dialog = page.get_by_role("dialog", name="Search everything")
    await expect(dialog.get_by_role("combobox")).to_be_focused()
    await page.keyboard.type(text)
    return dialog.get_by_role("option")


async def test_everything_is_found_by_the_keyboard(open_page: OpenPage, shared_node: DashboardNode) -> None:
    press = await shared_node.client("press-07", username="olga")
    await press.subscribe("plant/oslo/press/7", qos=1)
    rule = {"rawsql": 'SELECT * FROM "plant/#"', "actions": [], "description": "to the warehouse"}
    made = (await shared_node.api.post("/rules", rule)).data["id"]
    page = await open_page("/overview")
    heading = page.get_by_role("heading", level=1)
    await expect(heading).to_have_text("Overview")
    for text, kind, title, address in (
        ("ess-07", "Client", "press-07", "/clients/press-07"),
        ("olga", "Username", "press-07", "/clients/press-07"),
        ("plant/oslo/pre", "Topic", "plant/oslo/press", "/topics/topic?topic=plant%2Foslo%2Fpress"),
        ("warehouse", "Rule", made, f"/rules/rule/{made.replace(':', '%3A')}"),
        ("max_queued_messages", "Setting", "max_queued_messages", "/node/configuration?search="),
        ("listen", "Page", "Listeners", "/node/listeners"),
        ("never-let-in", "History of client", "never-let-in", "/clients/never-let-in"),
    ):
        options = await search(page, text)
        wanted = options.filter(has=page.get_by_text(kind, exact=True)).filter(has_text=title).first
        await expect(wanted).to_be_visible()
        while await wanted.get_attribute("aria-selected") != "true":
            await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert address in page.url, page.url
    await page.go_back()
    await expect(heading).to_have_text("Node")


async def test_hostile_names_are_text_and_a_viewer_may_search(open_page: OpenPage, shared_node: DashboardNode) -> None:
    await shared_node.client(HOSTILE)
    page = await open_page("/clients", role="viewer", viewport={"width": 390, "height": 844})
    # Also from the menu of a phone.
    await page.get_by_role("button", name="Menu").click()
    await page.get_by_role("button", name="Search…").click()
    dialog = page.get_by_role("dialog", name="Search everything")
    await expect(dialog.get_by_role("option").first).to_be_visible()
    await accessible(page, (1440, 1024, 390))
    await dialog.get_by_role("combobox").fill(HOSTILE[:6])
    option = dialog.get_by_role("option").filter(has_text=SHOWN.split("&")[0]).first
    await expect(option).to_be_visible()
    await option.click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(SHOWN.split("&")[0])


async def test_a_dialog_keeps_what_was_typed(open_page: OpenPage) -> None:
    page = await open_page("/access/users")
    await page.get_by_role("button", name="New user").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("dialog")).to_have_count(1)
    await expect(page.get_by_role("dialog", name="Search everything")).to_have_count(0)
