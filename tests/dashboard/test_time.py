"""Time in the charts: ranges in the address, zoom by dragging, comparison with the day before, what happened then."""

import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from playwright.async_api import Locator, Page, expect

from taipan.management.history.history import KEPT, STEPS
from taipan.management.history.point import FIGURES, Point
from taipan.management.history.ring_file import RingFile
from tests.support.browser import Dashboard, DashboardNode, accessible, until
from tests.support.forms import HOSTILE, SHOWN, fault, send, submit

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
DAY = 86_400
TODAY, YESTERDAY, BEFORE = 777, 333, 111
"""Sessions of the last twelve hours, of the day before, and of the time before that."""


def fill_history(data_dir: Path) -> None:
    """Write a history of 30 days, without the latest hour."""
    data_dir.mkdir(mode=0o700)
    rings = list(zip(KEPT.values(), STEPS.values(), strict=True))
    file = RingFile(data_dir / "taipan.history", tuple(KEPT.values()))
    file.open()
    now = int(time.time())
    for part, (size, step) in list(enumerate(rings))[1:]:
        for place in range(now // step - size + 1, (now - 3600) // step):
            age = now - place * step
            figures: list[int | float] = [0] * len(FIGURES)
            figures[FIGURES.index("sessions")] = TODAY if age < DAY / 2 else YESTERDAY if age < 1.5 * DAY else BEFORE
            point = Point(place * step, float(step), figures, {})
            file.write(part, place % size, msgspec.msgpack.encode(point))
    file.close()


@pytest.fixture(scope="module")
def make_node(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], DashboardNode]:
    def make() -> DashboardNode:
        directory = tmp_path_factory.mktemp("node")
        fill_history(directory / "data")
        return DashboardNode(directory)

    return make


def chart(page: Page, name: str = "Connections and sessions") -> Locator:
    return page.get_by_role("figure", name=name, exact=True)


def span_of(page: Page) -> list[int]:
    query = parse_qs(urlsplit(page.url).fragment.partition("?")[2])
    return [int(query[name][0]) for name in ("from", "to")]


async def drawn(page: Page) -> None:
    await until(page, "document.querySelectorAll('canvas').length >= 7")


async def drag(page: Page, start: float, end: float) -> None:
    """Over a chart, from one part of its width to another."""
    over = chart(page).locator(".u-over")
    await over.scroll_into_view_if_needed()
    box = await over.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    await page.mouse.move(box["x"] + box["width"] * start, y)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * (start + end) / 2, y)
    await page.mouse.move(box["x"] + box["width"] * end, y)
    await page.mouse.up()


async def test_dragging_zooms_all_charts_and_the_address_has_the_range(open_page: OpenPage) -> None:
    page = await open_page("/overview?range=day")
    await drawn(page)
    await expect(chart(page)).to_contain_text(f"lowest {YESTERDAY}")
    before = time.time() * 1000
    async with page.expect_request(lambda request: "/monitor?" in request.url and "from=" in request.url) as asked:
        await drag(page, 0.75, 0.25)  # to the left
    start, end = span_of(page)
    assert (end - start) == pytest.approx(DAY * 500, rel=0.1)
    assert start == pytest.approx(before - DAY * 750, abs=DAY * 50)
    request = await asked.value
    assert f"from={start}&to={end}" in request.url
    await expect(page.locator(".range-absolute strong")).to_have_text(re.compile(r"^\d{4}-.* UTC – \d{4}-.* UTC$"))
    await drawn(page)
    # All charts have the same times, and a colleague sees them too, also later.
    await expect(chart(page)).to_contain_text(f"highest {TODAY}")
    await page.reload()
    await drawn(page)
    assert span_of(page) == [start, end]
    colleague = await open_page(urlsplit(page.url).fragment, role="viewer")
    await drawn(colleague)
    shown = page.locator(".range-absolute strong")
    assert await colleague.locator(".range-absolute strong").inner_text() == await shown.inner_text()
    await page.get_by_role("button", name="Zoom out").click()
    wider = span_of(page)
    assert wider[0] < start and wider[1] > end
    await page.go_back()
    assert span_of(page) == [start, end]
    await page.get_by_role("button", name="Back to now").click()
    await expect(page.get_by_role("button", name="10 minutes")).to_have_attribute("aria-pressed", "true")
    await expect(shown).to_have_count(0)


async def test_a_range_can_be_typed(open_page: OpenPage) -> None:
    page = await open_page("/overview")
    await page.get_by_text("From… to…").click()
    await page.get_by_label("From", exact=True).fill("2026-01-02T03:04:05")
    await page.get_by_label("To", exact=True).fill("2026-01-02T03:14:05")
    await accessible(page, (1280, 390))
    await page.get_by_role("button", name="Show", exact=True).click()
    assert span_of(page) == [1767323045000, 1767323645000]
    await expect(page.locator(".range-absolute strong")).to_contain_text("2026-01-02 03:04:05 UTC")
    # No node keeps as old a time: that is no error.
    await expect(chart(page)).to_contain_text("No data yet.")


@pytest.mark.parametrize(("name", "days"), [("7 days", 7), ("30 days", 30)])
async def test_weeks_are_kept_by_ten_minutes(open_page: OpenPage, name: str, days: int) -> None:
    page = await open_page("/overview")
    await drawn(page)
    async with page.expect_response(lambda answer: "resolution=ten_minutes" in answer.url) as asked:
        await page.get_by_role("button", name=name).click()
    points = (await (await asked.value).json())["data"]["points"]
    assert len(points) == pytest.approx(days * 144, abs=10)
    await expect(chart(page)).to_contain_text(f"lowest {BEFORE}, highest {TODAY}")
    # The figures above are still those of now.
    sessions = page.locator(".tile:has(.tile-label:text-is('Sessions')) .tile-value")
    await expect(sessions).to_have_text("0")


async def test_today_is_compared_with_yesterday(open_page: OpenPage) -> None:
    page = await open_page("/overview?range=day")
    await drawn(page)
    compare = page.get_by_role("checkbox", name="Compare with the day before")
    await compare.check()
    assert "compare=1" in page.url
    figure = chart(page)
    await expect(figure).to_contain_text("Sessions, a day before")
    await expect(figure).to_contain_text(
        f"Sessions, a day before: now {YESTERDAY}, lowest {BEFORE}, highest {YESTERDAY}."
    )
    await accessible(page, (1440, 390))
    await page.reload()
    await expect(figure).to_contain_text("Sessions, a day before")
    await page.get_by_role("button", name="30 days").click()
    await expect(page.get_by_role("checkbox", name="Compare with")).to_be_disabled()
    await page.get_by_role("button", name="7 days").click()
    await expect(figure).to_contain_text("Sessions, a week before")


MARKS = """() => {
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--line-4").trim();
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return [...document.querySelectorAll("canvas")].filter((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) {
      if (data[at] === red && data[at + 1] === green && data[at + 2] === blue && data[at + 3] === 255) count += 1;
    }
    return count > 20;
  }).length;
}"""


async def test_a_moment_leads_to_what_happened_then(
    own_node: DashboardNode, open_dashboard: Callable[[DashboardNode], Dashboard]
) -> None:
    dashboard = open_dashboard(own_node)
    page = await dashboard.open("/overview")
    await drawn(page)
    assert await page.evaluate(MARKS) == 0
    assert (await own_node.api.post("/banned", {"who": "bad", "as": "clientid"})).code == 0
    await own_node.client("bad", expect=0x8A)
    happened = page.locator(".happened li")
    await page.reload()
    await drawn(page)
    await expect(happened.filter(has_text="POST /banned")).to_contain_text("admin")
    await expect(happened.filter(has_text="Refused")).to_contain_text("bad")
    await until(page, f"({MARKS})() >= 7")
    # The moment of a point is held by a key or a click, and is in the address.
    figure = chart(page, "Messages")
    await figure.focus()
    await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(r"moment=\d{13}$"))
    await expect(page.get_by_role("heading", name="What happened around")).to_be_visible()
    await expect(happened.filter(has_text="POST /banned")).to_be_visible()
    await accessible(page, (1440, 1024, 390))
    await page.reload()
    await expect(page.get_by_role("heading", name="What happened around")).to_be_visible()
    await page.get_by_role("button", name="Zoom in here").click()
    start, end = span_of(page)
    assert end - start == pytest.approx(120_000, abs=10)
    await expect(happened.filter(has_text="POST /banned")).to_be_visible()
    await happened.filter(has_text="POST /banned").get_by_role("link").click()
    await expect(page.get_by_role("table", name="Audit").locator("tbody tr")).to_have_count(1)
    await expect(page.get_by_role("table", name="Audit")).to_contain_text("/banned")
    # Long before, nothing happened.
    await page.goto(f"{own_node.url}/#/overview?moment=1767323045000")
    await expect(page.get_by_text("No annotations, changes, alarms or refused clients")).to_be_visible()
    await page.get_by_role("button", name="Close", exact=True).click()
    await expect(happened.filter(has_text="POST /banned")).to_be_visible()
    over = figure.locator(".u-over")
    await over.click(position={"x": 20, "y": 20})
    await expect(page).to_have_url(re.compile(r"moment=\d{13}$"))
    # The audit is for administrators.
    viewer = await dashboard.open("/overview", role="viewer")
    rows = viewer.locator(".happened li")
    await expect(rows.filter(has_text="Refused")).to_contain_text("bad")
    await expect(rows.filter(has_text="POST /banned")).to_have_count(0)


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
async def test_an_annotation_is_a_mark_with_its_text(
    open_page: OpenPage, shared_node: DashboardNode, locale: str
) -> None:
    page = await open_page("/overview", locale=locale)
    text = f"Deploy 1.4 {SHOWN} {locale}"
    await page.get_by_role("button", name="Annotate" if locale == "en-US" else "添加标注").click()
    dialog = page.get_by_role("dialog")
    await accessible(page, (1440, 1024, 390))
    await submit(dialog)
    await expect(fault(dialog, "text")).to_be_visible()
    await send(dialog, text=text.replace(SHOWN, HOSTILE))
    await expect(dialog).to_have_count(0)
    happened = page.locator(".happened li")
    await expect(happened.filter(has_text=text)).to_contain_text("admin")
    # It is no change of the list besides, and has no link.
    await expect(happened.filter(has_text="POST /annotations")).to_have_count(0)
    await expect(happened.filter(has_text=text).get_by_role("link")).to_have_count(0)
    await accessible(page, (1440, 1024, 390))
    viewer = await open_page("/overview", role="viewer", locale=locale)
    await expect(viewer.locator(".happened li").filter(has_text=text)).to_be_visible()
    await expect(viewer.get_by_role("button", name="Annotate" if locale == "en-US" else "添加标注")).to_be_disabled()
