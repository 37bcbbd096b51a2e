"""Ten tasks of an operator, each from the overview by clicks alone: no address is typed. docs/dashboard.md has the
counts."""

import ast
import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from taipan.broker.mqtt import constants as c
from tests.support.browser import Dashboard, DashboardNode
from tests.support.forms import control, row
from tests.support.http_sink import HttpSink
from tests.support.patience import patience

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

DOCS: Final = Path(__file__).parents[2] / "docs" / "dashboard.md"
SETTINGS: Final = """
[zones.external]
max_queued_messages = 2
"""


def documented() -> dict[str, int]:
    """The most clicks of each task, by its words in the table."""
    text = DOCS.read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \| (\d+) \|", text.partition("## Clicks of ten tasks")[2], re.MULTILINE)
    return {task: int(clicks) for task, clicks in rows}


class Operator:
    """One who uses the mouse and types text into fields. ``clicks``: how often the mouse was pressed."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    async def click(self, what: Locator) -> None:
        await what.click()
        self.clicks += 1

    async def type(self, field: Locator, text: str) -> None:
        """Type into a field. If it is not focused, it is clicked first."""
        if not await field.evaluate("(one) => one === document.activeElement"):
            await self.click(field)
        await self.page.keyboard.type(text)

    async def next(self, text: str) -> None:
        """Type into the field after the present one, which Tab reaches."""
        await self.page.keyboard.press("Tab")
        await self.page.keyboard.type(text)

    async def choose(self, field: Locator, value: str) -> None:
        """Open a list, and choose from it."""
        await field.select_option(value)
        self.clicks += 2

    async def link(self, name: str, within: Locator | None = None) -> None:
        await self.click((within or self.page).get_by_role("link", name=name, exact=True).first)

    async def button(self, name: str, within: Locator | None = None) -> None:
        await self.click((within or self.page).get_by_role("button", name=name, exact=True).first)

    async def to(self, page: str) -> None:
        """Open a page from the navigation."""
        await self.link(page, self.page.get_by_role("navigation", name="Pages"))


@asynccontextmanager
async def task(dashboard: Dashboard, words: str) -> AsyncIterator[Operator]:
    """The overview, where a task begins; at its end, the clicks are compared with the documented number."""
    page = await dashboard.open("/overview")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    operator = Operator(page)
    yield operator
    print(f"{words}: {operator.clicks} clicks")
    assert operator.clicks == documented()[words]


@pytest.fixture(scope="module")
def make_node(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], DashboardNode]:
    return lambda: DashboardNode(tmp_path_factory.mktemp("node"), SETTINGS)


@pytest_asyncio.fixture(loop_scope="session")
async def busy(shared_node: DashboardNode) -> AsyncIterator[DashboardNode]:
    """One client publishes most, one reads nothing and loses messages, one is refused."""
    reader = await shared_node.client("reader")
    await reader.subscribe("plant/#", qos=0)
    away = await shared_node.client("truck-7", properties={c.SESSION_EXPIRY_INTERVAL: 3600})
    await away.subscribe("plant/#", qos=1)
    await away.disconnect()
    await shared_node.api.post("/banned", {"who": "sensor-oslo-909", "as": "clientid"})
    with pytest.raises(AssertionError):
        await shared_node.client("sensor-oslo-909")
    loud = await shared_node.client("press-04")

    async def publish() -> None:
        while True:
            await loud.publish("plant/oslo", b"x" * 100, 1)
            await asyncio.sleep(0.05)

    publishing = asyncio.create_task(publish())
    yield shared_node
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)
    await shared_node.api.delete("/banned/clientid/sensor-oslo-909")


async def test_why_was_a_client_refused(dashboard: Dashboard, busy: DashboardNode) -> None:
    async with task(dashboard, "Why was a client refused?") as operator:
        await operator.link("Refusals")
        refused = row(operator.page, "sensor-oslo-909").first
        await expect(refused).to_contain_text("banned")
        await expect(refused).to_contain_text("Lift the ban")


async def test_why_does_a_client_not_receive_a_topic(dashboard: Dashboard, busy: DashboardNode) -> None:
    async with task(dashboard, "Why does a client not receive a topic?") as operator:
        await operator.to("Topics")
        await operator.link("Delivery check")
        await operator.type(control(operator.page, "clientid"), "reader")
        await operator.next("garden/lamp")
        await operator.page.keyboard.press("Enter")
        answer = operator.page.get_by_role("status").filter(has_text="the messages")
        await expect(answer).to_contain_text("Does not receive the messages")


async def test_which_topic_is_loudest(dashboard: Dashboard, busy: DashboardNode) -> None:
    async with task(dashboard, "Which topic is loudest?") as operator:
        await operator.to("Top lists")
        await operator.link("Topics", operator.page.get_by_role("navigation", name="Top lists"))
        first = operator.page.get_by_role("table", name="Topics").locator("tbody tr").first
        await expect(first).to_contain_text("plant/oslo")


async def test_which_client_is_slow_and_what_helps(dashboard: Dashboard, busy: DashboardNode) -> None:
    async with task(dashboard, "Which client loses messages, and what helps?") as operator:
        await operator.link("Dropped deliveries")
        lost = row(operator.page, "truck-7").first
        await expect(lost).to_contain_text("queue_full")
        await expect(lost).to_contain_text("max_queued_messages")


async def test_stop_an_abuser(dashboard: Dashboard, busy: DashboardNode) -> None:
    spammer = await busy.client("spammer")

    async def spam() -> None:
        while True:
            for _ in range(20):
                await spammer.publish("spam/x", b"x", 0)
            await asyncio.sleep(0.05)

    spamming = asyncio.create_task(spam())
    try:
        async with task(dashboard, "Find the client that floods, and ban it") as operator:
            await operator.link("Messages in")
            first = operator.page.get_by_role("table", name="Clients").locator("tbody tr").first
            await expect(first).to_contain_text("spammer")
            await operator.link("spammer", first)
            await operator.button("Ban")
            await operator.click(operator.page.get_by_role("dialog").locator("form button[type=submit]"))
            await expect(operator.page.get_by_text("Banned: Client ID, spammer")).to_be_visible()
    finally:
        spamming.cancel()
        await asyncio.gather(spamming, return_exceptions=True)
        await busy.api.delete("/banned/clientid/spammer")


async def test_a_rule_to_a_web_server(dashboard: Dashboard, busy: DashboardNode) -> None:
    server = await HttpSink().start()
    async with task(dashboard, "Send messages to a web server, and see it work") as operator:
        page = operator.page
        await operator.to("Rules")
        await operator.button("New rule")
        await operator.click(page.locator("[data-editor] .cm-content").first)
        await page.keyboard.insert_text('SELECT payload FROM "plant/#"')
        await operator.button("Add action")
        form = page.get_by_role("dialog", name="New action")
        await operator.choose(form.get_by_label("Action"), "data_to_webserver")
        await operator.button("New resource…", form)
        resource = page.get_by_role("dialog", name="New resource")
        await operator.type(resource.get_by_label("Request URL"), server.url)
        await operator.button("Save", resource)
        await expect(form.get_by_label("Resource ID")).not_to_have_value("")
        await operator.button("Apply", form)
        await operator.button("Create rule")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("rule:")
        async with asyncio.timeout(patience(40)):
            while not server.bodies:
                await asyncio.sleep(0.1)
        await expect(page.locator("tbody tr").filter(has_text="data_to_webserver").first).to_contain_text(
            re.compile("[1-9]")
        )
    await server.stop()


async def test_delete_a_retained_message(dashboard: Dashboard, busy: DashboardNode) -> None:
    keeper = await busy.client("keeper")
    for number in range(30):
        await keeper.publish(f"garden/lamp/{number}", b"on", qos=1, retain=True)
    async with task(dashboard, "Find a retained message, and delete it") as operator:
        page = operator.page
        await operator.to("Retained")
        await operator.link("By filter")
        await operator.type(page.get_by_label("Topic matches"), "garden/lamp/17")
        await operator.link("garden/lamp/17")
        await operator.button("Delete")
        await operator.button("Delete", page.get_by_role("dialog"))
        await expect(page.get_by_role("dialog")).to_have_count(0)
    assert (await busy.api.get("/retained", topic="garden/lamp/17")).data == []


async def test_a_user_for_one_branch(dashboard: Dashboard, busy: DashboardNode) -> None:
    async with task(dashboard, "Create a user who may use one branch of topics") as operator:
        page = operator.page
        await operator.to("Access")
        await operator.button("Allow one branch")
        dialog = page.get_by_role("dialog")
        await operator.type(control(dialog, "name"), "pump")
        await operator.next("devices/pump/#")
        await expect(dialog.get_by_role("region", name="Result")).to_contain_text("new")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog", name="Password, shown only once")).to_be_visible()
    for path in ("/auth_user/pump", "/acl/username/pump/topic/devices%2Fpump%2F%23", "/acl/username/pump/topic/%23"):
        await busy.api.delete(path)


async def test_the_configuration_of_another_node(
    dashboard: Dashboard, busy: DashboardNode, open_dashboard: Callable[[DashboardNode], Dashboard], tmp_path: Path
) -> None:
    async with task(dashboard, "Export users, rules and bans") as operator:
        page = operator.page
        await operator.to("Node")
        await operator.link("Export and import")
        await operator.button("Export now")
        async with page.expect_download() as download:
            await operator.button("Download", row(page, "broker-export-").first)
        saved = tmp_path / "export.json"
        await (await download.value).save_as(saved)
    (tmp_path / "other").mkdir()
    other = await DashboardNode(tmp_path / "other").start()
    importing = open_dashboard(other)
    try:
        async with task(importing, "Import them into another node") as operator:
            page = operator.page
            await operator.to("Node")
            await operator.link("Export and import")
            async with page.expect_file_chooser() as chooser:
                await operator.click(page.locator("input[type=file]"))
            await (await chooser.value).set_files(saved)
            operator.clicks += 1  # in the browser's own dialog
            await operator.click(page.locator("form button[type=submit]:not(.views *)"))
            await operator.link("Preview")
            await operator.button("Import")
            await operator.button("Import", page.get_by_role("dialog"))
            await expect(page.get_by_role("dialog")).to_have_count(0)
        assert [each["who"] for each in (await other.api.get("/banned")).data] == ["sensor-oslo-909"]
    finally:
        importing.watch.node_may_be_away = True  # its page is still open
        await other.stop()


async def test_what_changed_at_a_time(dashboard: Dashboard, busy: DashboardNode) -> None:
    async with task(dashboard, "What changed at a moment?") as operator:
        page = operator.page
        over = page.locator("figure.chart").filter(has_text="Messages").first.locator(".u-over")
        await operator.click(over)
        await expect(page.get_by_role("heading", name="What happened around")).to_be_visible()


async def test_the_table_has_these_tasks() -> None:
    calls = [each for each in ast.walk(ast.parse(Path(__file__).read_text("utf-8"))) if isinstance(each, ast.Call)]
    words = [
        ast.literal_eval(each.args[1]) for each in calls if isinstance(each.func, ast.Name) and each.func.id == "task"
    ]
    assert sorted(words) == sorted(documented())
