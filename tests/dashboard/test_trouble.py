"""Trouble: alarms, refusals and drops by reason, slow subscriptions, traces that are followed."""

import asyncio
import io
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import DashboardNode, accessible, until
from tests.support.forms import HOSTILE, SHOWN, confirmed, control, fault, row, send, submit
from tests.support.node import free_port

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
SETTINGS = """
[slow_subscriptions]
enabled = true
threshold = 0.01
"""


@pytest.fixture(scope="module")
def make_node(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], DashboardNode]:
    return lambda: DashboardNode(tmp_path_factory.mktemp("node"), SETTINGS)


async def test_alarms(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/trouble")
    await expect(page.get_by_text("No active alarms.")).to_be_visible()
    await expect(page.get_by_role("button", name="Clear list")).to_be_disabled()
    # A resource that cannot reach its service.
    resource = {"id": "away", "type": "web_hook", "config": {"url": f"http://127.0.0.1:{free_port()}/"}}
    assert (await shared_node.api.post("/resources", resource)).code == 0
    name = "resource/web_hook/away/down"
    await expect(row(page, name)).to_be_visible()
    viewer = await open_page("/trouble", role="viewer")
    await expect(row(viewer, name).get_by_role("button", name="Resolve alarm")).to_be_disabled()
    await page.locator("details.columns").first.locator("summary").click()
    await page.get_by_label("Details").first.check()
    await page.locator("details.columns").first.locator("summary").click()
    await accessible(page)
    await row(page, name).get_by_role("button", name="Resolve alarm").click()
    await confirmed(page, "Resolve alarm", name)
    await expect(page.get_by_role("heading", name="Resolved (1)")).to_be_visible()
    assert (await shared_node.api.delete("/resources/away")).code == 0
    await page.get_by_role("button", name="Clear list").click()
    await confirmed(page, "Clear list", "resolved alarms of all nodes")
    await expect(page.get_by_role("heading", name="Resolved (0)")).to_be_visible()
    over = (await shared_node.api.get("/alarms/deactivated")).data
    assert [alarm["name"] for node in over for alarm in node["alarms"]] == []


async def test_notifications(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/trouble/targets")
    await expect(page.get_by_text("No targets yet.")).to_be_visible()
    await accessible(page)
    await page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    await submit(dialog)
    await expect(fault(dialog, "url")).to_have_text("This field is required.")
    await send(dialog, id="hook", type="webhook", url="ftp://host/")
    await expect(fault(dialog, "url")).to_contain_text("expected http:// or https://")
    url = f"http://127.0.0.1:{free_port()}/?token=s3cret"
    await send(dialog, url=url, headers={"Authorization": "Bearer s3cret"})
    await expect(row(page, "hook")).to_contain_text("ready")
    await row(page, "hook").get_by_role("button", name="Send test").click()
    await expect(page.locator(".toast", has_text="not sent: Cannot connect")).to_be_visible()
    resource = {"id": "gone", "type": "web_hook", "config": {"url": f"http://127.0.0.1:{free_port()}/"}}
    assert (await shared_node.api.post("/resources", resource)).code == 0
    await expect(row(page, "hook")).to_contain_text("failing")
    await expect(row(page, "hook")).to_contain_text("Cannot connect")
    # Another target, which works.
    subscriber = await shared_node.client("ops")
    await subscriber.subscribe("ops/alarms")
    await page.keyboard.press("n")
    await send(dialog, id="topic", type="mqtt", topic="ops/alarms")
    assert b"resource/web_hook/gone/down" in (await subscriber.expect_publish()).payload
    await row(page, "topic").get_by_role("button", name="Send test").click()
    await expect(page.get_by_text("Test sent to topic")).to_be_visible()
    assert b"This is a test" in (await subscriber.expect_publish()).payload
    # Secrets do not come back, and stay when another field changes.
    await row(page, "hook").get_by_role("button", name="Change").click()
    assert "s3cret" not in await dialog.inner_html()
    await accessible(page)
    await send(dialog, enabled=False)
    await expect(row(page, "hook")).to_contain_text("disabled")
    (stored,) = [each for each in (await shared_node.api.get("/alarm_targets")).data if each["id"] == "hook"]
    assert stored["config"]["headers"] == {"Authorization": "******"}
    # A silence, from the list of alarms.
    await page.goto(f"{shared_node.url}/#/trouble")
    await row(page, "gone").get_by_role("button", name="Silence").click()
    await expect(control(dialog, "alarms")).to_have_value("resource/web_hook/gone/down")
    await accessible(page)
    await send(dialog, reason="new ERP")
    silences = page.get_by_role("table", name="Silences")
    await expect(silences).to_contain_text("new ERP")
    viewer = await open_page("/trouble/targets", role="viewer")
    await expect(row(viewer, "topic").get_by_role("button", name="Delete")).to_be_disabled()
    await silences.get_by_role("button", name="End silence").click()
    await expect(page.get_by_text("No silences.")).to_be_visible()
    thresholds = page.get_by_role("table", name="Thresholds")
    await row(thresholds, "Connected clients").get_by_role("button", name="Change").click()
    await send(dialog, value="5000")
    await expect(row(thresholds, "Connected clients")).to_contain_text("above 5,000")
    await row(thresholds, "Connected clients").get_by_role("button", name="Change").click()
    await accessible(page)
    await send(dialog, value="")
    await expect(row(thresholds, "Connected clients")).to_contain_text("off")
    for name in ("hook", "topic"):
        await row(page, name).get_by_role("button", name="Delete").click()
        await confirmed(page, "Delete", name)
    assert (await shared_node.api.get("/alarm_targets")).data == []
    assert (await shared_node.api.delete("/resources/gone")).code == 0
    assert (await shared_node.api.delete("/alarms/deactivated")).code == 0


async def test_refusals_and_drops_by_reason(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/trouble/reasons", role="viewer")
    assert (await shared_node.api.post("/banned", {"who": "bad", "as": "clientid"})).code == 0
    for _ in range(3):
        await shared_node.client("bad", expect=0x8A)
    publisher = await shared_node.client("alone")
    await publisher.publish("nobody/listens", qos=1)
    await expect(row(page, "banned")).to_contain_text("/banned")
    await expect(row(page, "messages.dropped.no_subscribers")).to_contain_text("no subscription matched")
    await until(page, "document.querySelectorAll('canvas').length === 1")
    await accessible(page)
    await page.get_by_role("searchbox").fill("bann")
    await expect(row(page, "no_subscribers")).to_have_count(0)
    await expect(page).to_have_url(f"{shared_node.url}/#/trouble/reasons?reason=bann")
    await page.reload()
    await expect(row(page, "banned")).to_be_visible()
    await expect(row(page, "no_subscribers")).to_have_count(0)
    await page.get_by_role("button", name="Last day").click()
    assert "range=day" in page.url
    await page.go_back()
    await expect(page.get_by_role("button", name="Last hour")).to_have_attribute("aria-pressed", "true")
    # A page that shows a reason sends here.
    await page.goto(f"{shared_node.url}/#/overview")
    await page.get_by_role("link", name="banned", exact=True).click()
    await expect(row(page, "banned")).to_be_visible()


async def test_slow_subscriptions(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/trouble/slow")
    await expect(page.get_by_text("No slow subscriptions.")).to_be_visible()
    topic = HOSTILE.replace("/", "")
    slow = await shared_node.client("slow")
    await slow.subscribe(topic, qos=1)
    publisher = await shared_node.client("quick")
    await publisher.publish(topic, b"1", qos=1)
    packet = await slow.expect_publish(acknowledge=False)
    await asyncio.sleep(0.05)  # Longer than the threshold: it is this that is looked at.
    await slow.puback(packet.packet_id)
    await expect(row(page, "slow")).to_contain_text(SHOWN.replace("/", ""))
    await expect(row(page, "slow").get_by_role("link")).to_have_attribute("href", "#/clients/slow")
    await accessible(page)
    await page.get_by_role("button", name="Clear list").click()
    await confirmed(page, "Clear list", "deletes the list on all nodes")
    await expect(page.get_by_text("No slow subscriptions.")).to_be_visible()
    assert (await shared_node.api.put("/modules/emqx_mod_slow_subs/unload")).code == 0
    await page.reload()
    await expect(page.get_by_text("Slow subscriptions are not recorded.")).to_be_visible()
    await expect(page.get_by_role("link", name="Modules of the node")).to_be_visible()


async def test_traces(open_page: OpenPage, shared_node: DashboardNode, tmp_path: Path) -> None:
    page = await open_page("/trouble/traces?new=1&type=topic&topic=door/%23")
    dialog = page.get_by_role("dialog")
    await expect(control(dialog, "topic")).to_have_value("door/#")
    await submit(dialog)
    await expect(fault(dialog, "name")).to_have_text("This field is required.")
    await send(dialog, name="a b")
    await expect(fault(dialog, "name")).to_contain_text("letters, digits")
    await send(dialog, name="door", minutes="0")
    await expect(fault(dialog, "minutes")).to_have_text("Enter 0.1 or more.")
    await accessible(page)
    await send(dialog, minutes="5")
    await expect(row(page, "door")).to_contain_text("running")
    await page.keyboard.press("n")
    await send(dialog, name="other", type="ip_address", ip_address="nowhere")
    await expect(fault(dialog, "ip_address")).to_be_visible()
    await send(dialog, type="clientid", clientid=HOSTILE)
    await expect(row(page, "other")).to_contain_text(SHOWN)
    # Followed while it fills, also after a reload in the middle.
    await page.get_by_role("link", name="door", exact=True).click()
    await expect(page.get_by_text("No lines yet.")).to_be_visible()
    publisher = await shared_node.client(HOSTILE)
    await publisher.publish("door/front", b"open", qos=1)
    log = page.get_by_role("log")
    await expect(log).to_contain_text("door/front")
    await expect(log).to_contain_text("onerror")
    await page.reload()
    await expect(log).to_contain_text("door/front")
    await publisher.publish("door/back", b"shut", qos=1)
    await expect(log).to_contain_text("door/back")
    await accessible(page)
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download").click()
    saved = tmp_path / "trace.zip"
    await (await download.value).save_as(saved)
    with zipfile.ZipFile(io.BytesIO(saved.read_bytes())) as archive:
        assert b"door/back" in b"".join(archive.read(name) for name in archive.namelist())
    await page.get_by_role("link", name="All traces").click()
    await row(page, "door").get_by_role("button", name="Stop").click()
    await expect(row(page, "door")).to_contain_text("ended")
    await publisher.publish("door/unseen", b"", qos=1)
    await page.go_back()
    await expect(log).to_contain_text("door/back")
    await expect(log).not_to_contain_text("door/unseen")
    await page.go_forward()
    viewer = await open_page("/trouble/traces", role="viewer")
    await expect(viewer.get_by_role("button", name="New trace")).to_be_disabled()
    await expect(row(viewer, "other").get_by_role("button", name="Delete")).to_be_disabled()
    await accessible(viewer, (390,))
    await row(page, "door").get_by_role("button", name="Delete").click()
    await confirmed(page, "Delete", "door")
    await expect(row(page, "door")).to_have_count(0)
    await page.get_by_role("button", name="Delete all").click()
    await confirmed(page, "Delete all", "other")
    await expect(page.get_by_text("No traces yet.")).to_be_visible()
    assert (await shared_node.api.get("/trace")).data == []
    await page.goto(f"{shared_node.url}/#/trouble/traces/door")
    await expect(page.get_by_role("alert")).to_contain_text("door")
