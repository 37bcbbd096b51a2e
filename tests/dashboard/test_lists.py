"""Lists: copied identifiers, menus, CSV, views, bulk actions, cards on a phone, a first column that stays."""

import csv
import io
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import Dashboard, DashboardNode, accessible
from tests.support.forms import row, row_action

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
FORMULA = '=HYPERLINK("http://evil/")'


async def test_an_identifier_is_copied(open_page: OpenPage, shared_node: DashboardNode) -> None:
    await shared_node.client("press/07 ", username="olga")
    page = await open_page("/clients")
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.get_by_role("button", name="Copy press/07").click()
    await expect(page.get_by_text("Copied", exact=True)).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == "press/07 "
    # A browser has no clipboard for a page without TLS: the text is copied all the same.
    await page.evaluate("delete Navigator.prototype.clipboard")
    copied = "new Promise((done) => addEventListener('copy', () => done(getSelection().toString()), { once: true }))"
    await page.evaluate(f"() => void (window.copied = {copied})")
    await page.get_by_role("button", name="Copy olga").click()
    assert await page.evaluate("window.copied") == "olga"


async def test_all_rows_are_downloaded_and_no_name_is_a_formula(
    open_page: OpenPage, shared_node: DashboardNode, tmp_path: Path
) -> None:
    for number in range(22):
        await shared_node.client(f"sensor-{number:02}", username='says "hello", loudly')
    await shared_node.client(FORMULA)
    page = await open_page("/clients?limit=20&sort=clientid")
    await expect(page.locator("tbody tr")).to_have_count(20)
    async with page.expect_download() as started:
        await page.get_by_role("button", name="CSV").click()
    download = await started.value
    assert download.suggested_filename == "clients.csv"
    await download.save_as(tmp_path / "clients.csv")
    text = (tmp_path / "clients.csv").read_text("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert sorted(each["Client ID"] for each in rows) == sorted(
        [f"'{FORMULA}", *(f"sensor-{number:02}" for number in range(22))]
    )
    sensor = next(each for each in rows if each["Client ID"] == "sensor-07")
    assert sensor["Username"] == 'says "hello", loudly' and sensor["State"] == "connected"
    assert sensor["Address"].startswith("127.0.0.1:") and sensor["Queued"] == "0"


async def test_a_view_keeps_filters_under_a_name(open_page: OpenPage, shared_node: DashboardNode) -> None:
    await shared_node.client("sensor-1")
    page = await open_page("/clients?_like_clientid=sensor&sort=-queued&page=1")
    await page.get_by_text("Views", exact=True).click()
    await page.get_by_label("Name of the view").fill("<b>Sensors</b>")
    await accessible(page, (1280, 390))
    await page.get_by_role("button", name="Save filters").click()
    await page.goto(f"{shared_node.url}/#/clients")
    await page.reload()
    await page.get_by_text("Views (1)").click()
    await page.get_by_role("link", name="<b>Sensors</b>").click()
    await expect(page).to_have_url(f"{shared_node.url}/#/clients?_like_clientid=sensor&sort=-queued")
    await expect(page.get_by_label("Client ID contains")).to_have_value("sensor")
    await page.get_by_role("button", name="Delete view").click()
    await expect(page.get_by_text("Views", exact=True)).to_be_visible()


async def test_all_that_match_are_kicked_after_they_were_counted(
    open_page: OpenPage, shared_node: DashboardNode
) -> None:
    for number in range(23):
        await shared_node.client(f"abuser-{number:02}")
    await shared_node.client("innocent")
    page = await open_page("/clients")
    every = page.get_by_role("button", name="Kick all matching…")
    await expect(row(page, "innocent")).to_be_visible()
    await expect(every).to_have_count(0)  # of a list without filters, those are all clients
    await page.get_by_label("Client ID contains").fill("abuser")
    await every.click()
    dialog = page.get_by_role("dialog", name="Kick 23 clients?")
    await expect(dialog.get_by_role("listitem")).to_have_count(11)
    await expect(dialog).to_contain_text("and 13 more")
    await accessible(page, (1280, 390))
    await dialog.get_by_role("button", name="Cancel").click()
    assert len((await shared_node.api.get("/clients")).data) == 24
    await every.click()
    await dialog.get_by_role("button", name="Kick 23").click()
    await expect(dialog).to_have_count(0)
    assert [each["clientid"] for each in (await shared_node.api.get("/clients")).data] == ["innocent"]
    viewer = await open_page("/clients?_like_clientid=innocent", role="viewer")
    await expect(viewer.get_by_role("button", name="Kick all matching…")).to_be_disabled()
    await expect(await row_action(row(viewer, "innocent"), "Kick…")).to_be_disabled()


async def test_a_menu_by_the_keyboard(open_page: OpenPage, shared_node: DashboardNode) -> None:
    await shared_node.client("press-07")
    page = await open_page("/clients")
    button = page.get_by_role("button", name="Actions for press-07")
    await button.focus()
    await page.keyboard.press("Enter")
    await expect(button).to_have_attribute("aria-expanded", "true")
    await expect(page.get_by_role("button", name="Open", exact=True)).to_be_focused()
    await accessible(page, (1440, 1024))
    await page.keyboard.press("Escape")
    await expect(button).to_be_focused()
    await expect(button).to_have_attribute("aria-expanded", "false")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Open", exact=True)).to_be_focused()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog").get_by_label("Client ID")).to_have_value("press-07")


# Each text whose end is outside of its cell; a blank at the end of a line may be.
CUT = """() => [...document.querySelectorAll('.cards td')].filter((cell) => {
  const part = document.createRange();
  part.selectNodeContents(cell);
  return [...part.getClientRects()].some((one) => one.width > 1 && one.right > cell.getBoundingClientRect().right + 8);
}).map((cell) => cell.textContent)"""


@pytest.mark.parametrize("width", [360, 390])
async def test_rows_are_cards_on_a_phone(open_page: OpenPage, shared_node: DashboardNode, width: int) -> None:
    client = await shared_node.client("press-04/temperature/of/the/third/roller/in/the/second/hall", username="u" * 60)
    await client.subscribe("plant/" + "level/" * 12 + "#", qos=1)
    publisher = await shared_node.client("publisher")
    await publisher.publish("kept/" + "level/" * 12, b"x", qos=1, retain=True)
    for path, table, heading in (
        ("/clients", "Clients", "Queued"),
        ("/subscriptions", "Subscriptions", "QoS"),
        ("/retained/list", "Retained messages", "Published"),
        ("/node/configuration", "Configuration", "Value"),
    ):
        page = await open_page(path, viewport={"width": width, "height": 844})
        rows = page.get_by_role("table", name=table).get_by_role("row")
        await expect(rows.nth(1)).to_be_visible()
        assert await page.evaluate(CUT) == [], path
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        # Each figure has its title, and the titles of the columns sort.
        label = "(cell) => getComputedStyle(cell, '::before').content"
        cells = rows.nth(1).get_by_role("cell")
        titles = [await cells.nth(at).evaluate(label) for at in range(await cells.count())]
        assert not heading or f'"{heading}"' in titles, titles
        await accessible(page, (width,))
    page = await open_page("/clients", viewport={"width": width, "height": 844})
    await page.get_by_role("button", name="Queued").click()
    assert page.url.endswith("sort=-queued")


async def test_the_first_column_stays_in_sight(open_page: OpenPage, shared_node: DashboardNode) -> None:
    await shared_node.client("press-07")
    page = await open_page("/clients", viewport={"width": 1024, "height": 800})
    await page.locator("details.columns summary").click()
    for name in ("Session created", "Bytes received", "Bytes sent", "Keep alive", "Messages received", "Messages sent"):
        await page.get_by_label(name, exact=True).check()
    await page.locator("details.columns summary").click()
    await page.locator(".table-scroll").evaluate("(one) => one.scrollTo(one.scrollWidth, 0)")
    await expect(page.locator(".table-block.more-left")).to_have_count(1)
    name, scroller = await row(page, "press-07").get_by_role("link").bounding_box(), page.locator(".table-scroll")
    box = await scroller.bounding_box()
    assert name is not None and box is not None and name["x"] >= box["x"]
    # It is not behind another cell.
    hit = await page.evaluate("([x, y]) => document.elementFromPoint(x, y).textContent", [name["x"] + 4, name["y"] + 6])
    assert hit == "press-07"


async def test_rows_are_dense(open_page: OpenPage, shared_node: DashboardNode) -> None:
    await shared_node.client("press-07")
    page = await open_page("/clients", viewport={"width": 1440, "height": 900})
    box = await row(page, "press-07").bounding_box()
    assert box is not None and box["height"] <= 32


@pytest.mark.parametrize(("locale", "words"), [("en-US", "Connect your first client"), ("zh-CN", "连接第一个客户端")])
async def test_an_empty_list_leads_to_the_first_step(
    own_node: DashboardNode, open_dashboard: Callable[[DashboardNode], Dashboard], locale: str, words: str
) -> None:
    widths = (1440, 1024, 390) if locale == "en-US" else (390,)
    page = await open_dashboard(own_node).open("/clients", locale=locale)
    for path in ("/clients", "/subscriptions", "/subscriptions/groups", "/retained/delayed", "/top/clients"):
        await page.goto(f"{own_node.url}/#{path}")
        await expect(page.locator(".empty").get_by_role("link", name=words)).to_be_visible()
        await accessible(page, widths)
    await page.locator(".empty").get_by_role("link", name=words).click()
    await expect(page.locator("pre.log")).to_contain_text(f"-p {own_node.ports['tcp']}")
    await page.goto(f"{own_node.url}/#/rules")
    first = page.locator(".empty").get_by_role("link")
    await expect(first).to_have_attribute("href", "#/rules/new")
    await accessible(page, widths)
    # A filter that finds nothing is no lack of clients.
    await page.goto(f"{own_node.url}/#/subscriptions?_match_topic=a")
    await expect(page.locator(".empty")).to_be_visible()
    await expect(page.locator(".empty").get_by_role("link", name=words)).to_have_count(0)
