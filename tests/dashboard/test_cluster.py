"""Three real nodes of a cluster in one browser: figures and clients of all on one page, and one that is killed."""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.support.browser import Dashboard, DashboardNode, accessible
from tests.support.forms import row
from tests.support.nats_server import NatsServers, nats_server_program
from tests.support.node import free_port
from tests.support.peer import Peer

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

# A node that is not heard is Suspect, asked and missed for as long as the test needs it, and nobody waits long for it.
CLUSTER = """
[cluster]
servers = {servers}
call_timeout = 1.0
suspect_after = 3.0
stopped_after = 600.0
"""


WITH_COPIES = "replicas = 1\nfailover_after = 4.0\n"


@asynccontextmanager
async def three_nodes(directory: Path, more: str = "") -> AsyncIterator[list[DashboardNode]]:
    """They see each other. ``more``: lines of ``[cluster]``."""
    nats_server_program()
    made: list[DashboardNode] = []
    async with NatsServers() as servers:
        try:
            for number in (1, 2, 3):
                own = directory / f"n{number}"
                own.mkdir()
                table = CLUSTER.format(servers=json.dumps(servers.urls)) + more
                made.append(DashboardNode(own, table, name=f"n{number}@127.0.0.1"))
                # One after the other: the first makes the user, whose password it says.
                await made[-1].start()
                made[-1].password = made[0].password
            while [each["node_status"] for each in (await made[0].api.get("/nodes")).data] != ["Running"] * 3:
                await asyncio.sleep(0.05)
            yield made
        finally:
            for node in made:
                await node.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def nodes(browser: Browser, tmp_path: Path) -> AsyncIterator[list[DashboardNode]]:
    async with three_nodes(tmp_path) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def nodes_with_copies(browser: Browser, tmp_path: Path) -> AsyncIterator[list[DashboardNode]]:
    async with three_nodes(tmp_path, WITH_COPIES) as made:
        yield made


async def test_a_node_that_is_killed_is_named_until_it_is_back(
    nodes: list[DashboardNode], open_dashboard: Callable[[DashboardNode], Dashboard]
) -> None:
    first, _, last = nodes
    for number, node in enumerate(nodes, 1):
        client = await node.client(f"on-n{number}", version=4, clean_start=False)
        await client.subscribe(f"to/n{number}")
    dashboard = open_dashboard(first)
    page = await dashboard.open("/overview")
    banner = page.get_by_role("status").filter(has_text="These nodes are not responding")
    statuses = page.locator(".node-card")

    # All three, with a figure for each and the sum of all.
    choice = page.locator(".page-head select")
    names = [node.name for node in nodes]
    await expect(choice.locator("option")).to_have_text(["All nodes", *names])
    picture = page.locator(".cluster-picture")
    for number, name in enumerate(names):
        await expect(statuses.nth(number)).to_contain_text(name)
        await expect(statuses.nth(number)).to_contain_text("Running")
        await expect(picture.locator("a").filter(has_text=name)).to_contain_text("1 client")
    arrows = picture.locator(".picture-link")
    await expect(arrows).to_have_count(6)
    await expect(picture.locator(".picture-link.good")).to_have_count(6)
    await accessible(page, (1440, 390))

    # Messages that the first node accepts for clients of the last one cross one link: each has its own rate.
    message = {"topic": "to/n3", "payload": "x", "qos": 1, "clientid": "p"}
    for _ in range(20):
        assert (await first.api.post("/mqtt/publish", message)).code == 0
    to_last = arrows.filter(has_text=f"{first.name} → {last.name}")
    await expect(to_last.locator("text")).to_have_text(re.compile(r"^[1-9][\d.]*/s$"))
    await expect(arrows.filter(has_text=f"{last.name} → {first.name}").locator("text")).to_have_text("0/s")
    await page.get_by_role("link", name="Links between the nodes").click()
    links = page.get_by_role("table", name="Links between the nodes").locator("tbody tr")
    await expect(links).to_have_count(6)
    to_last_row = links.filter(has_text=f"{first.name} → {last.name}")
    await expect(to_last_row.locator("td")).to_have_text(
        [re.compile("→"), "open", re.compile(r"/s$"), "0", "0 B", "–", "20", "0"]
    )
    await accessible(page, (1440, 390))
    await dashboard.go(page, "/overview")
    await expect(page.locator(".tile:has(.tile-label:text-is('Connections')) .tile-value")).to_have_text("3")
    await choice.select_option(last.name)
    await expect(page.locator(".tile:has(.tile-label:text-is('Connections')) .tile-value")).to_have_text("1")
    await dashboard.go(page, "/clients")
    clients = page.get_by_role("table", name="Clients").locator("tbody tr")
    await expect(clients).to_have_count(3)
    await page.get_by_text("Columns").click()
    await page.get_by_role("checkbox", name="Node").check()
    for number, name in enumerate(names, 1):
        await expect(clients.filter(has_text=f"on-n{number}")).to_contain_text(name)

    # One is killed: each page says that it lacks what is that node's, and shows what the others have.
    assert last.process is not None
    last.process.process.kill()
    await last.process.process.wait()
    await expect(banner).to_contain_text(last.name)
    await expect(clients).to_have_count(2)
    await dashboard.go(page, "/subscriptions")
    await expect(page.get_by_role("table", name="Subscriptions").locator("tbody tr")).to_have_count(2)
    await expect(banner).to_contain_text(last.name)
    await dashboard.go(page, "/overview")
    await expect(statuses.nth(2)).to_contain_text("Suspect")
    await expect(picture.locator(".picture-link.bad")).to_have_count(4)
    assert (await first.api.post("/mqtt/publish", message)).code == 0
    await expect(to_last).to_contain_text("1 waiting")
    await expect(picture.locator(".picture-link.good")).to_have_count(2)
    await accessible(page, (1440, 390))
    await expect(page.locator(".health")).to_contain_text(f"Node {last.name} is not running.")
    await dashboard.go(page, "/node")
    statuses_of = page.get_by_role("table", name="Nodes", exact=True).get_by_role("row")
    await expect(statuses_of.filter(has_text=last.name)).to_contain_text("Suspect")
    await expect(links).to_have_count(4)
    await expect(to_last_row.locator("td").nth(1)).to_have_text("opening")
    await expect(to_last_row.locator("td").nth(3)).to_have_text("1")

    # It is back, and nothing is missed any more.
    await last.start()
    await expect(statuses_of.filter(has_text=last.name)).to_contain_text("Running")
    await expect(links).to_have_count(6)
    await expect(to_last_row.locator("td").nth(1)).to_have_text("open")
    await expect(to_last_row.locator("td").nth(3)).to_have_text("0")
    await dashboard.go(page, "/clients")
    await expect(clients).to_have_count(3)
    await expect(banner).to_have_count(0)
    await dashboard.go(page, "/overview")
    await expect(statuses.nth(2)).to_contain_text("Running")
    await expect(page.locator(".health")).not_to_contain_text("is not running")


async def test_who_is_behind_the_figures_of_the_other_nodes(
    nodes: list[DashboardNode], open_dashboard: Callable[[DashboardNode], Dashboard]
) -> None:
    """Loudest clients and topics, a refusal, a change and an alarm of any node, in the dashboard of the first one."""
    first, second, last = nodes

    async def publish(number: int, peer: Peer) -> None:
        while True:
            for _ in range(number):
                await peer.publish(f"own/n{number}", b"x", 0)
            for _ in range(4):
                await peer.publish("shared", b"x", 0)
            await asyncio.sleep(0.2)

    publishing = [
        asyncio.create_task(publish(3 * number, await node.client(f"loud-{number}")))
        for number, node in enumerate(nodes, 1)
    ]
    try:
        # The second node refuses a client, and has the change of an administrator; the last one has an alarm.
        assert (await second.api.post("/banned", {"who": "never-let-in", "as": "clientid"})).code == 0
        await second.client("never-let-in", expect=0x8A)
        resource = {"id": "away", "type": "web_hook", "config": {"url": f"http://127.0.0.1:{free_port()}/"}}
        assert (await last.api.post("/resources", resource)).code == 0
        dashboard = open_dashboard(first)
        page = await dashboard.open("/top/clients?by=in")
        rows = page.get_by_role("table", name="Clients").locator("tbody tr")
        await expect(rows).to_have_text([re.compile("loud-3"), re.compile("loud-2"), re.compile("loud-1")])
        await dashboard.go(page, "/top/topics")
        rows = page.get_by_role("table", name="Topics").locator("tbody tr")
        # Each node's part of the first topic is not the most, the sum is.
        await expect(rows).to_have_text([re.compile(topic) for topic in ("shared", "own/n9", "own/n6", "own/n3")])

        # Without a name, and by its name.
        await dashboard.go(page, "/top/refused?reason=banned")
        await expect(row(page, "never-let-in")).to_contain_text("Lift the ban")
        await dashboard.go(page, "/trouble/refused")
        refused = row(page, "never-let-in")
        await expect(refused).to_contain_text("banned")
        await page.get_by_text("Columns").first.click()
        await page.get_by_role("checkbox", name="Node").check()
        await expect(refused).to_contain_text(second.name)
        await accessible(page, (1440, 390))

        await dashboard.go(page, "/trouble/audit")
        ban = page.get_by_role("table", name="Audit").locator("tbody tr").filter(has_text="POST /banned")
        await expect(ban).to_have_count(1)
        await expect(ban).to_contain_text("never-let-in")
        await page.get_by_text("Columns").first.click()
        await page.get_by_role("checkbox", name="Node").check()
        await expect(ban).to_contain_text(second.name)
        await dashboard.go(page, "/trouble")
        alarm = page.locator("tbody tr").filter(has_text="resource/web_hook/away/down")
        await expect(alarm.filter(has_text=last.name)).to_be_visible()
    finally:
        for each in publishing:
            each.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)


async def test_copies_and_a_node_that_runs_from_one(
    nodes_with_copies: list[DashboardNode], open_dashboard: Callable[[DashboardNode], Dashboard]
) -> None:
    first, second, _ = nodes_with_copies
    dashboard = open_dashboard(first)
    page = await dashboard.open("/node/copies")
    copies = page.get_by_role("table", name="Copies").locator("tbody tr")
    await expect(copies).to_have_count(3)
    for number in range(3):
        await expect(copies.nth(number).get_by_text("in sync", exact=True)).to_be_visible()
    await accessible(page, (1440, 390))
    publisher = await second.client("p")
    await publisher.publish("$delayed/600/later", b"kept", qos=1)
    await dashboard.go(page, "/overview")
    cards = page.locator(".node-card")
    for number in range(3):
        await expect(cards.nth(number)).to_contain_text("in sync")
    await accessible(page, (1440, 390))

    # The node and its disk are gone: another node runs it from the copy, as long as it owes the delayed message.
    assert second.process is not None
    dashboard.watch.another_may_be_away = True
    second.process.process.kill()
    await second.process.process.wait()
    await asyncio.to_thread(shutil.rmtree, second.directory / "data")
    second.process = None
    await expect(cards.nth(1)).to_contain_text("from its copy")
    await expect(cards.filter(has_text=f"also runs {second.name}")).to_have_count(1)
    await accessible(page, (1440, 390))
    await dashboard.go(page, "/trouble")
    await page.get_by_role("link", name=f"node_hosted/{second.name}").first.click()
    hosted = page.get_by_role("table", name="Nodes that run from a copy").locator("tbody tr")
    await expect(hosted).to_have_count(1)
    await expect(hosted).to_contain_text(second.name)
    await expect(hosted).to_contain_text("delayed messages: 1")
    await accessible(page, (1440, 390))
    await page.get_by_role("link", name="Nodes", exact=True).first.click()
    nodes = page.get_by_role("table", name="Nodes", exact=True).get_by_role("row")
    await expect(nodes.filter(has_text=second.name)).to_contain_text("Running")
