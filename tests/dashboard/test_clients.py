"""Clients: found among many, one with its state and its story, and what may be ordered about it."""

import re
from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Browser, Page, Route, expect

from taipan.broker.mqtt.packets import Will
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.limits import Limits
from tests.support.api import managed_node
from tests.support.browser import PASSWORD, Dashboard, DashboardNode, accessible, until
from tests.support.forms import row, row_action

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]

HOSTILE = "<img src=x onerror=alert(1)>/?#%2F\u202egnp\u200b"
LONG = "l" * 60_000


async def test_found_among_others(open_page: OpenPage, shared_node: DashboardNode) -> None:
    for number in range(3):
        await shared_node.client(f"porch-{number}")
    await shared_node.client("cellar", version=4)
    page = await open_page("/clients")
    names = page.get_by_role("table", name="Clients").locator("tbody td:first-child")
    await expect(names.filter(has_text="porch-1")).to_have_count(1)
    # The exact time is there when somebody points at it.
    since = page.locator("tbody time").first
    await since.hover()
    await expect(since).to_have_attribute("title", re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$"))
    await accessible(page)
    # The key goes to the search, and each keystroke is answered.
    await page.keyboard.press("/")
    await page.keyboard.type("porch")
    await expect(names).to_have_text(["porch-0", "porch-1", "porch-2"])
    await expect(page).to_have_url(re.compile(r"_like_clientid=porch$"))
    await page.get_by_text("All filters").click()
    await page.get_by_role("combobox", name="Version").select_option("4")
    await expect(page.get_by_text("No matching clients.")).to_be_visible()
    await page.get_by_label("Client ID contains").fill("")
    await expect(names).to_have_text(["cellar"])
    await page.go_back()
    await page.reload()
    await expect(names).to_have_text(["porch-0", "porch-1", "porch-2"])
    # What is no value is said in the API's words, and mended where it was typed.
    await page.get_by_text("All filters").click()
    await expect(page.get_by_role("combobox", name="Version")).to_have_value("")
    await page.get_by_label("Queued, at least").fill("many")
    await expect(page.get_by_role("alert")).to_contain_text("_gte_mqueue_len")
    await page.get_by_label("Queued, at least").fill("0")
    await page.get_by_label("Client ID is").fill("porch-2")
    await page.get_by_label("Connected after").fill("2001-01-01T00:00")
    await page.get_by_role("combobox", name="Clean start").select_option("true")
    await expect(names).to_have_text(["porch-2"])
    await page.get_by_role("button", name="Clear filters").click()
    await expect(names.filter(has_text="cellar")).to_have_count(1)
    # Columns of choice stay.
    await page.get_by_text("Columns").click()
    await page.get_by_label("Keep alive").check()
    await page.reload()
    await expect(page.get_by_role("columnheader", name="Keep alive")).to_be_visible()
    await page.get_by_role("button", name="Client ID", exact=True).click()
    await expect(names.first).to_have_text("cellar")


async def test_back_leads_to_where_the_list_was(open_page: OpenPage, shared_node: DashboardNode) -> None:
    for number in range(40):
        await shared_node.client(f"many-{number:02}")
    page = await open_page("/clients?_like_clientid=many-")
    rows = page.get_by_role("table", name="Clients").locator("tbody tr")
    await expect(rows).to_have_count(40)
    await page.evaluate("scrollTo(0, 600)")
    await until(page, "scrollY === 600")
    await page.get_by_role("link", name="many-15").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("many-15")
    await until(page, "scrollY === 0")
    await page.get_by_role("link", name="Details").click()
    await page.go_back()
    await page.go_back()
    await expect(rows).to_have_count(40)
    await until(page, "scrollY === 600")
    await page.go_forward()
    await expect(page.get_by_role("heading", level=1)).to_have_text("many-15")
    await until(page, "scrollY === 0")
    # A page that is opened anew begins at its head.
    await page.get_by_role("link", name="All clients").click()
    await expect(rows).not_to_have_count(0)
    assert await page.evaluate("scrollY") == 0


@pytest.mark.parametrize("width", [390, 1024, 1280, 1440])
async def test_what_matters_is_in_sight(open_page: OpenPage, shared_node: DashboardNode, width: int) -> None:
    await shared_node.client("press-04/temperature/of/the/third/roller", username="somebody")
    page = await open_page("/clients", viewport={"width": width, "height": 900})
    table = page.get_by_role("table", name="Clients")
    await expect(table.get_by_role("link").first).to_be_visible()
    for column in ("Client ID", "State", "Queued", "Dropped"):
        box = await table.get_by_role("columnheader", name=column).bounding_box()
        assert box is not None and box["x"] + box["width"] <= width, column
    await expect(table.get_by_role("columnheader", name="Address")).to_have_count(1 if width >= 1200 else 0)
    # What was left out is said, and can be had.
    columns = page.locator("details.columns summary").first
    await expect(columns).to_have_text("Columns" if width >= 1200 else re.compile(r"Columns \(\d more\)"))
    await columns.click()
    for name in ("Address", "Session created", "Bytes received", "Bytes sent", "Keep alive", "Messages received"):
        await page.get_by_label(name, exact=True).check()
    await columns.click()
    if width < 700:  # rows are cards, with room for all
        return
    # What has no room then is to the side, with a sign.
    more = page.get_by_role("button", name="More columns →")
    await expect(more).to_be_visible()
    await more.click()
    await expect(page.locator(".table-block.more-left")).to_have_count(1)
    await page.locator(".table-scroll").evaluate("(one) => one.scrollTo(one.scrollWidth, 0)")
    await expect(more).to_have_count(0)
    # A short name and an address stand in one line each.
    await expect(table.get_by_role("cell", name="127.0.0.1:").first).to_be_visible()
    short = await table.locator(".name.short bdi").evaluate_all(
        "(all) => all.map((one) => one.getClientRects().length)"
    )
    assert set(short) == {1}


async def test_states_have_one_name_each(open_page: OpenPage, shared_node: DashboardNode) -> None:
    away = await shared_node.client("resting", properties={17: 3600})
    await away.disconnect()
    page = await open_page("/clients")
    await page.get_by_role("combobox", name="State").select_option(label="offline")
    rows = page.get_by_role("table", name="Clients").locator("tbody tr")
    await expect(rows.filter(has_text="resting")).to_contain_text("offline")
    assert await page.get_by_role("combobox", name="State").locator("option").all_inner_texts() == [
        "any", "connected", "connecting", "offline",
    ]  # fmt: skip


async def test_times_are_by_the_clock_of_the_node(
    shared_node: DashboardNode, open_dashboard: Callable[[DashboardNode], Dashboard]
) -> None:
    await shared_node.client("recent")
    context = await open_dashboard(shared_node).context()
    await context.add_init_script("{ const now = Date.now; Date.now = () => now() + 3 * 3_600_000; }")
    page = await context.new_page()
    await page.goto(f"{shared_node.url}/#/clients?_like_clientid=recent")
    since = page.locator("tbody time").first
    await expect(since).to_have_text(re.compile("now|seconds? ago|minutes? ago"))
    await page.goto(f"{shared_node.url}/#/clients/recent")
    await page.get_by_role("button", name="Ban").click()
    await page.get_by_role("dialog").get_by_role("button", name="Ban").click()
    await expect(page.locator(".panel.warn")).to_contain_text("Banned:")
    [ban] = [each for each in (await shared_node.api.get("/banned")).data if each["who"] == "recent"]
    assert abs(ban["until"] - ban["at"] - 3600) < 120


@pytest.mark.parametrize("version", [4, 5])
async def test_one_that_was_never_let_in_is_found(
    open_page: OpenPage, shared_node: DashboardNode, version: int
) -> None:
    """From a search that finds nothing, and from the list of who was refused."""
    lost = f"lost-{version}-{HOSTILE}"
    assert (await shared_node.api.post("/banned", {"who": lost, "as": "clientid"})).code == 0
    for _ in range(2):
        await shared_node.client(lost, version, expect=5 if version == 4 else 0x8A, username="somebody")
    page = await open_page("/clients", role="viewer")
    await page.get_by_label("Client ID contains").fill(lost)
    await expect(page.get_by_text("No matching clients.")).to_be_visible()
    await page.get_by_role("link", name="History of").click()
    story = page.get_by_role("table", name="History")
    await expect(story).to_contain_text("banned")
    # A part of its name is enough.
    await page.go_back()
    await page.get_by_label("Client ID contains").fill(f"LOST-{version}".lower())
    refused = page.get_by_role("table", name="Refused clients")
    await expect(refused.locator("tbody tr")).to_have_count(1)
    await expect(refused).to_contain_text("Lift the ban")
    await accessible(page)
    await page.get_by_role("link", name="Refused clients").last.click()
    await expect(page).to_have_url(f"{shared_node.url}/#/trouble/refused?client=lost-{version}")
    await expect(refused.locator("tbody tr")).to_have_count(1)
    await expect(refused).to_contain_text("somebody")
    await expect(refused).to_contain_text("127.0.0.1")
    await accessible(page)
    await page.get_by_role("searchbox").fill("no such name")
    await expect(page.get_by_text("No matching refused clients.")).to_be_visible()
    await page.get_by_role("searchbox").fill("")
    await refused.get_by_role("link", name=f"lost-{version}").click()
    await expect(story).to_contain_text("banned")


async def test_one_with_its_story_and_its_queue(open_page: OpenPage, shared_node: DashboardNode) -> None:
    away = await shared_node.client("away", clean_start=True, properties={17: 3600})
    await away.subscribe("queue/+", qos=1)
    await away.disconnect()
    publisher = await shared_node.client("publisher")
    for number in range(3):
        await publisher.publish(f"queue/{number}", b"x" * number, qos=1)
    page = await open_page("/clients/away")
    await expect(page.get_by_text("Queued").locator("..").locator(".tile-value")).to_have_text("3")
    story = page.get_by_role("table", name="History")
    await expect(story).to_contain_text("connected")
    await expect(story).to_contain_text("the client sent DISCONNECT")
    await expect(story).to_contain_text("the node created a new session")
    await accessible(page)
    await page.get_by_role("link", name="Queue", exact=True).click()
    queue = page.get_by_role("table", name="Queue")
    await expect(queue.locator("tbody tr")).to_have_count(3)
    await expect(queue.locator("tbody tr").nth(1)).to_contain_text("queue/1")
    await accessible(page, (390,))
    again = await shared_node.client("away", clean_start=False)
    # It takes them and does not acknowledge.
    await expect(page.get_by_text("connected", exact=True)).to_be_visible()
    await expect(page.get_by_text("The queue is empty.")).to_be_visible()
    await page.get_by_role("link", name="In flight").click()
    await page.reload()
    await expect(page.get_by_role("table", name="In flight").locator("tbody tr")).to_have_count(3)
    await page.get_by_role("link", name="Details").click()
    await expect(page.get_by_text("Session expiry")).to_be_visible()
    await page.go_back()
    await expect(page.get_by_role("link", name="In flight")).to_have_attribute("aria-current", "page")
    await again.close()


async def test_orders(open_page: OpenPage, shared_node: DashboardNode) -> None:
    peer = await shared_node.client("worker", username="somebody")
    page = await open_page("/clients/worker/subscriptions")
    await expect(page.get_by_text("This client has no subscriptions.")).to_be_visible()
    await page.get_by_role("button", name="Subscribe").first.click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Subscribe").click()
    await expect(dialog.get_by_role("alert")).to_have_text("This field is required.")
    await dialog.get_by_label("Topic filter").fill("a/#/b")
    await dialog.get_by_role("button", name="Subscribe").click()
    await expect(dialog.get_by_role("alert")).to_be_visible()
    await accessible(page)
    await dialog.get_by_label("Topic filter").fill("jobs/1")
    await dialog.get_by_label("QoS").select_option("1")
    await page.keyboard.press("Enter")
    table = page.get_by_role("table", name="Subscriptions")
    await expect(table).to_contain_text("jobs/1")
    # A message to it, with everything filled in.
    await page.get_by_role("button", name="Publish").click()
    await dialog.get_by_label("Topic", exact=False).first.fill("jobs/1")
    await dialog.get_by_label("Payload", exact=False).first.fill("b2s=")
    await dialog.get_by_label("Payload format", exact=True).select_option("base64")
    await dialog.get_by_label("QoS").select_option("1")
    await dialog.get_by_text("More settings").click()
    await dialog.get_by_label("Message Expiry Interval (seconds)").fill("soon")
    await dialog.get_by_role("button", name="Publish").click()
    await expect(dialog.get_by_role("alert")).to_have_text("Enter a number.")
    await dialog.get_by_label("Message Expiry Interval (seconds)").fill("60")
    await dialog.get_by_label("Content Type").fill("text/plain")
    await dialog.get_by_label("Response Topic").fill("answers")
    await dialog.get_by_label("Correlation Data").fill("7")
    await dialog.get_by_label("Mark the payload as UTF-8").check()
    await dialog.get_by_role("button", name="Add").click()
    await dialog.get_by_label("Key 1").fill("who")
    await dialog.get_by_label("Value 1").fill("operator")
    await dialog.get_by_role("button", name="Publish").click()
    got = await peer.expect_publish("jobs/1")
    assert got.payload == b"ok" and got.qos == 1
    await expect(page.get_by_role("link", name="Trace")).to_have_attribute(
        "href", "#/trouble/traces?new=1&type=clientid&clientid=worker"
    )
    await table.get_by_role("button", name="Unsubscribe").click()
    await expect(dialog).to_contain_text("jobs/1")
    await dialog.get_by_role("button", name="Unsubscribe").click()
    await expect(page.get_by_text("This client has no subscriptions.")).to_be_visible()
    await page.get_by_role("button", name="Ban").click()
    await dialog.get_by_label("Minutes").fill("0")
    await dialog.get_by_role("button", name="Ban").click()
    await expect(dialog.get_by_role("alert")).to_have_text("Enter 1 or more.")
    await dialog.get_by_label("Minutes").fill("5")
    await dialog.get_by_label("Reason").fill("too <b>loud</b>")
    await dialog.get_by_role("button", name="Ban").click()
    await peer.expect_disconnect(0x98)
    missing = page.locator(".panel.warn")
    await expect(missing).to_contain_text("Banned: Client ID, worker")
    await expect(missing).to_contain_text(
        re.compile(r"By admin, until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC. too <b>loud</b>")
    )
    with pytest.raises(AssertionError, match="wanted 0x0"):
        await shared_node.client("worker")
    story = page.get_by_role("table", name="History")
    await expect(story).to_contain_text("refused")
    await expect(story).to_contain_text("too <b>loud</b>")
    await expect(story).to_contain_text("Lift the ban")
    await expect(story).to_contain_text(re.compile(r"by admin until \d{4}-\d\d-\d\d "))
    await missing.get_by_role("button", name="Lift ban").click()
    await dialog.get_by_role("button", name="Lift ban").click()
    await expect(page.get_by_text("Unknown client")).to_be_visible()
    await shared_node.client("worker")


async def test_kick_and_who_may_not(open_page: OpenPage, shared_node: DashboardNode) -> None:
    peer = await shared_node.client("kicked")
    viewer = await open_page("/clients/kicked", role="viewer")
    await expect(viewer.get_by_role("heading", level=1)).to_have_text("kicked")
    for name in ("Subscribe", "Publish", "Trace", "Ban", "Kick kicked"):
        await expect(viewer.get_by_role("button", name=name)).to_be_disabled()
    await accessible(viewer, (1280,))
    page = await open_page("/clients?_like_clientid=kicked")
    await row_action(row(page, "kicked"), "Kick…")
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    await row_action(row(page, "kicked"), "Kick…")
    await expect(page.get_by_role("dialog").get_by_role("listitem")).to_have_text("kicked")
    await page.get_by_role("dialog").get_by_role("button", name="Kick", exact=True).click()
    await peer.expect_disconnect(0x98)
    await expect(page.get_by_text("No matching clients.")).to_be_visible()
    await expect(viewer.get_by_text("Unknown client")).to_be_visible()
    await expect(viewer.get_by_role("table", name="History")).to_contain_text("an operator ended the session")


async def test_hostile_names_are_text(open_page: OpenPage, shared_node: DashboardNode) -> None:
    peer = await shared_node.client(
        HOSTILE, username="\u202ename<script>", will=Will("w", b"", 0, False), properties={17: 100}
    )
    await peer.subscribe(HOSTILE[:-1].replace("#", "") + "/" + "t" * 30_000)
    await shared_node.client(LONG)
    page = await open_page("/clients")
    first = page.get_by_role("link", name="<img src=x")
    await expect(first).to_contain_text("[RLO]gnp[ZWSP]")
    await expect(page.get_by_role("button", name="… 60,000")).to_be_visible()
    await accessible(page)
    await first.click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(
        "<img src=x onerror=alert(1)>/?#%2F[RLO]gnp[ZWSP]"
    )
    await page.get_by_role("link", name="Subscriptions", exact=True).last.click()
    await expect(page.get_by_role("table", name="Subscriptions")).to_contain_text("… 30,0")
    await page.get_by_role("button", name="Unsubscribe").click()
    await expect(page.get_by_role("dialog")).to_contain_text("[RLO]")
    await accessible(page)
    await page.get_by_role("dialog").get_by_role("button", name="Unsubscribe").click()
    await expect(page.get_by_text("This client has no subscriptions.")).to_be_visible()
    await page.get_by_role("button", name="Kick").click()
    await page.get_by_role("dialog").get_by_role("button", name="Kick", exact=True).click()
    await expect(page.get_by_text("Unknown client")).to_be_visible()


async def test_nodes_that_do_not_answer_are_named(open_page: OpenPage, shared_node: DashboardNode) -> None:
    """As the API tells them in a cluster; where they answer again, or on another page, nothing is said."""
    silent = ["n3@<b>host</b>"]
    page = await open_page("/overview")

    async def answer(route: Route) -> None:
        came = await route.fetch()
        told = await came.json()
        if silent:
            told["meta"]["missing_nodes"] = silent
        await route.fulfill(response=came, json=told)

    await page.route(re.compile(r"/api/v4/clients\?"), answer)
    await page.goto(f"{shared_node.url}/#/clients")
    banner = page.locator(".banner")
    await expect(banner).to_contain_text("n3@<b>host</b> Their data is missing from this page.")
    await accessible(page)
    await page.goto(f"{shared_node.url}/#/subscriptions")
    await expect(banner).to_have_count(0)
    await page.goto(f"{shared_node.url}/#/clients")
    await expect(banner).to_be_visible()
    silent.clear()
    await page.get_by_label("Client ID contains").fill("x")
    await expect(banner).to_have_count(0)


async def test_two_hundred_thousand(browser: Browser) -> None:
    """The node searches, page by page; what is typed is shown at once, whatever it finds."""
    async with managed_node(dashboard={}) as node:
        zone = node.settings.listener_zones[0]
        for number in range(200_000):
            client = ClientInfo("node", zone, client_id=f"device-{number:06}")
            node.server.broker.life.open_session(client, True, 100, Limits(), node.server.clock.now())
        await node.api.post("/users", {"username": "op", "password": PASSWORD, "role": "administrator", "tags": ""})
        url = node.management.dashboard_url
        context = await browser.new_context()
        try:
            login = {"username": "op", "password": PASSWORD}
            await context.request.post(f"{url}/api/v4/auth", data=login, headers={"X-Taipan-Dashboard": "1"})
            page = await context.new_page()
            await page.goto(f"{url}/#/clients?page=2")
            names = page.get_by_role("table", name="Clients").locator("tbody td:first-child")
            await expect(names.first).to_have_text("device-000050")
            await expect(page.locator(".pager")).to_contain_text("51–100 of 200,000")
            await page.keyboard.press("/")
            await page.keyboard.type("199950")
            await expect(page.get_by_label("Client ID contains")).to_have_value("199950")
            await expect(names).to_have_text(["device-199950"])
            await page.get_by_label("Client ID contains").fill("9999")
            await expect(names).to_have_count(38)
            await page.get_by_label("Client ID contains").fill("nobody")
            await expect(page.get_by_text("No matching clients.")).to_be_visible()
            # The node sorts all of them, not the page.
            await page.get_by_label("Client ID contains").fill("")
            for name, count in (("device-123456", 7), ("device-000077", 5)):
                session = node.server.broker.sessions.get(name)
                assert session is not None
                session.mqueue_dropped = count
            await page.get_by_role("button", name="Dropped", exact=True).click()
            await expect(names.nth(0)).to_have_text("device-123456")
            await expect(names.nth(1)).to_have_text("device-000077")
            await expect(page).to_have_url(re.compile("sort=-dropped"))
            await expect(page.locator(".pager")).to_contain_text("1–50 of 200,000")
        finally:
            await context.close()
