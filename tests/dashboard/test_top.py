"""Top lists: who is behind the figures, found without a name."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from taipan.broker.mqtt import constants as c
from tests.support.browser import DashboardNode, accessible
from tests.support.forms import row

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
HOSTILE = "<b>loud</b>/\u202egnp"
SETTINGS = """
[zones.external]
max_queued_messages = 2
"""
SHOWN = "<b>loud</b>/[RLO]gnp"


@pytest.fixture(scope="module")
def make_node(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], DashboardNode]:
    return lambda: DashboardNode(tmp_path_factory.mktemp("node"), SETTINGS)


@pytest_asyncio.fixture(loop_scope="session")
async def busy(shared_node: DashboardNode) -> AsyncIterator[DashboardNode]:
    """One client publishes, one reads, one of a group reads, one is away, one is refused."""
    reader = await shared_node.client("reader")
    await reader.subscribe("plant/#", qos=0)
    member = await shared_node.client("worker")
    await member.subscribe("$share/line/plant/+", qos=0)
    away = await shared_node.client("truck-7", properties={c.SESSION_EXPIRY_INTERVAL: 3600})
    await away.subscribe("plant/#", qos=1)
    await away.disconnect()
    await shared_node.api.post("/banned", {"who": "never-let-in", "as": "clientid"})
    for _ in range(2):
        with pytest.raises(AssertionError):
            await shared_node.client("never-let-in")
    loud = await shared_node.client(HOSTILE)

    async def publish() -> None:
        while True:
            await loud.publish("plant/oslo", b"x" * 100, 1)
            await asyncio.sleep(0.05)

    publishing = asyncio.create_task(publish())
    yield shared_node
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)


async def test_from_each_figure_to_the_list_behind_it(open_page: OpenPage, busy: DashboardNode) -> None:
    page = await open_page("/overview")
    await page.get_by_role("link", name="Messages in", exact=True).click()
    await expect(page).to_have_url(re.compile(r"#/top/clients\?by=in$"))
    table = page.get_by_role("table", name="Clients")
    await expect(table.locator("tbody tr").first).to_contain_text(SHOWN)
    await expect(page.get_by_role("button", name="Messages in", exact=True)).to_have_attribute("aria-pressed", "true")
    await page.get_by_role("button", name="Messages out").click()
    await expect(table.locator("tbody tr").filter(has_text="reader")).to_be_visible()
    await expect(table.locator("tbody tr").filter(has_text=SHOWN)).to_be_hidden()
    await accessible(page, (1440, 1024, 390))
    await page.go_back()
    await expect(table.locator("tbody tr").first).to_contain_text(SHOWN)
    await table.get_by_role("link", name="loud").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(SHOWN)
    await page.goto(f"{busy.url}/#/overview")
    await page.get_by_role("link", name="Dropped deliveries", exact=True).click()
    lost = page.get_by_role("table", name="Losing messages")
    await expect(row(page, "truck-7")).to_contain_text("queue_full")
    await expect(row(page, "truck-7")).to_contain_text("max_queued_messages")
    await expect(lost.get_by_role("img")).to_have_count(1)
    await accessible(page, (1440, 1024, 390))
    await page.get_by_role("link", name="Longest queues").click()
    await expect(page).to_have_url(re.compile(r"#/clients\?sort=-queued$"))
    await expect(page.get_by_role("table", name="Clients").locator("tbody tr").first).to_contain_text("truck-7")


async def test_from_a_reason_to_its_clients(open_page: OpenPage, busy: DashboardNode) -> None:
    page = await open_page("/overview", role="viewer")
    drops = page.get_by_role("table", name="Dropped and refused", exact=True)
    await drops.get_by_role("link", name="delivery.dropped.queue_full").click()
    await expect(page).to_have_url(re.compile(r"#/top/dropped\?reason=delivery.dropped.queue_full$"))
    await expect(page.get_by_text("Only delivery.dropped.queue_full")).to_be_visible()
    await expect(row(page, "truck-7")).to_be_visible()
    await page.goto(f"{busy.url}/#/trouble/reasons")
    await page.get_by_role("link", name="banned", exact=True).click()
    await expect(page).to_have_url(re.compile(r"#/top/refused\?reason=banned$"))
    await expect(row(page, "never-let-in")).to_contain_text("127.0.0.1")
    await expect(row(page, "never-let-in")).to_contain_text("Lift the ban")
    await accessible(page, (1440, 1024, 390))
    await page.goto(f"{busy.url}/#/top/refused?reason=nothing")
    await expect(page.get_by_text("Nothing was refused in the last ten minutes.")).to_be_visible()
    await page.get_by_role("button", name="Show all").click()
    await expect(row(page, "never-let-in").first).to_be_visible()
    await row(page, "never-let-in").first.get_by_role("link").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("never-let-in")


async def test_topics_and_groups(open_page: OpenPage, busy: DashboardNode) -> None:
    page = await open_page("/top/topics")
    await expect(row(page, "plant/oslo")).to_contain_text(SHOWN)
    await accessible(page, (1440, 1024, 390))
    await page.get_by_role("link", name="Shared groups").click()
    await expect(row(page, "$share/line/plant/+")).to_be_visible()
    await accessible(page, (1440, 1024, 390))
    await row(page, "$share/line/plant/+").get_by_role("link").click()
    await expect(page.get_by_role("link", name="worker")).to_be_visible()
    await page.goto(f"{busy.url}/#/top/topics")
    await row(page, "plant/oslo").get_by_role("link", name="plant/oslo").click()
    await expect(page.get_by_role("link", name="reader")).to_be_visible()
