"""Access: one user with its clients and rules, and one branch of topics for one user."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from taipan.broker.access.scram import ScramVerifier
from tests.support.browser import Dashboard, DashboardNode, accessible
from tests.support.forms import HOSTILE, SHOWN, confirmed, control, fill_in, row, send, submit

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
WIDTHS = (1440, 1024, 390)
SECRET = "a-secret-of-mine"


async def rules_of(node: DashboardNode, path: str) -> list[tuple[str, str, str]]:
    return [(each["topic"], each["action"], each["access"]) for each in (await node.api.get(path)).data]


def branch(topic: str) -> list[tuple[str, str, str]]:
    return [(topic, "pub", "allow"), (topic, "sub", "allow"), ("#", "pub", "deny"), ("#", "sub", "deny")]


async def test_a_user_for_one_branch(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/access")
    await page.get_by_role("button", name="Allow one branch").click()
    dialog = page.get_by_role("dialog")
    await submit(dialog)
    await expect(dialog.get_by_text("This field is required.")).to_have_count(2)
    await fill_in(dialog, name="pump", topic="devices/x/#")
    # What will be created, before it is.
    result = dialog.get_by_role("region", name="Result")
    await expect(result).to_contain_text("Username pump: new The node generates the password.")
    await expect(result.get_by_role("listitem")).to_have_text(
        ["allow publish and subscribe devices/x/# new", "deny publish and subscribe # new"]
    )
    await fill_in(dialog, action="sub", only=False)
    await expect(result.get_by_role("listitem")).to_have_text(["allow subscribe devices/x/# new"])
    await fill_in(dialog, action="pubsub", only=True)
    await accessible(page, WIDTHS)
    assert (await shared_node.api.get("/auth_user/pump")).data == {}
    await submit(dialog)
    shown = page.get_by_role("dialog", name="Password, shown only once")
    secret = await shown.locator("code").inner_text()
    await shown.get_by_role("button", name="Done").click()
    assert await rules_of(shared_node, "/acl/username/pump") == branch("devices/x/#")
    peer = await shared_node.client("p", username="pump", password=secret.encode())
    await peer.publish("devices/x/1", b"1", qos=1)
    assert await peer.publish("devices/y/1", b"1", qos=1, expect=None) == 0x87
    await peer.subscribe("devices/x/#")
    # A second branch for the user that exists: nothing about its password is asked.
    await page.get_by_role("button", name="Allow one branch").click()
    await fill_in(dialog, name="pump", topic="devices/y/#")
    await expect(result).to_contain_text("Username pump: exists and remains unchanged")
    await expect(control(dialog, "password")).to_have_count(0)
    await submit(dialog)
    await expect(dialog).to_have_count(0)
    assert await rules_of(shared_node, "/acl/username/pump") == [*branch("devices/y/#")[:2], *branch("devices/x/#")]
    await peer.publish("devices/y/1", b"1", qos=1)
    await shared_node.close_clients()
    for path in ("/auth_user/pump", "/acl/username/pump/topic/devices%2Fx%2F%23"):
        assert (await shared_node.api.delete(path)).code == 0


async def test_a_part_that_fails_leaves_nothing(
    open_dashboard: Callable[[DashboardNode], Dashboard], tmp_path: Path
) -> None:
    """A user of the configuration cannot be created: its rules are as before again."""
    more = f'[[access.users]]\nusername = "ann"\nscram = "{ScramVerifier.create(SECRET)}"\n'
    node = await DashboardNode(tmp_path, more).start()
    try:
        page = await open_dashboard(node).open("/access")
        await page.get_by_role("button", name="Allow one branch").click()
        dialog = page.get_by_role("dialog")
        await fill_in(dialog, name="ann", topic="devices/#/no", generate=False, password=SECRET)
        await expect(dialog.get_by_role("region", name="Result")).to_contain_text("Username ann: new")
        await submit(dialog)
        await expect(dialog.locator("[data-field='topic'] .wrong")).to_contain_text("#")
        await send(dialog, topic="devices/#")
        await expect(dialog.get_by_role("alert").first).to_contain_text("already exists")
        assert await rules_of(node, "/acl/username/ann") == []
        assert (await node.api.get("/auth_user/ann")).data == {}
        # Its rules alone.
        await fill_in(dialog, create=False)
        await expect(dialog.get_by_role("region", name="Result")).to_contain_text(
            "is not stored; only rules are created"
        )
        await submit(dialog)
        await expect(dialog).to_have_count(0)
        assert await rules_of(node, "/acl/username/ann") == branch("devices/#")
    finally:
        await node.stop()


async def test_one_user_with_its_clients_and_rules(open_page: OpenPage, shared_node: DashboardNode) -> None:
    name = quote(HOSTILE, safe="")
    user = {"login": HOSTILE, "password": SECRET, "is_superuser": False}
    assert (await shared_node.api.post("/auth_user", user)).code == 0
    await shared_node.client("first-of-it", username=HOSTILE, password=SECRET.encode())
    page = await open_page("/access")
    await row(page, SHOWN).get_by_role("link", name=SHOWN).click()
    await expect(page.get_by_role("heading", name=SHOWN)).to_be_visible()
    await expect(row(page, "first-of-it")).to_contain_text("connected")
    # Who comes later is shown too.
    await shared_node.client("second-of-it", username=HOSTILE, password=SECRET.encode())
    await expect(row(page, "second-of-it")).to_be_visible()
    await page.get_by_role("button", name="Add rule").click()
    await page.keyboard.type("a/#")
    await page.get_by_role("button", name="Save rules").click()
    await expect(page.get_by_text("Unsaved changes")).to_have_count(0)
    assert await rules_of(shared_node, f"/acl/username/{name}") == [("a/#", "pub", "allow"), ("a/#", "sub", "allow")]
    await accessible(page, WIDTHS)
    # A branch for this user: the name is known.
    await page.get_by_role("button", name="Allow one branch").click()
    dialog = page.get_by_role("dialog")
    await expect(control(dialog, "name")).to_have_count(0)
    await fill_in(dialog, topic="b/#")
    await expect(dialog.get_by_role("region", name="Result")).to_contain_text("exists and remains unchanged")
    await submit(dialog)
    await expect(page.get_by_label("Topic of rule 1")).to_have_value("b/#")
    await expect(page.get_by_label("Topic of rule 3")).to_have_value("#")
    # A superuser: the page says that its rules are nothing to it.
    await page.get_by_role("button", name="Edit").click()
    await send(dialog, password=SECRET, is_superuser=True)
    await expect(page.get_by_text("Superuser: access rules do not apply.")).to_be_visible()
    await page.get_by_role("button", name="Delete", exact=True).click()
    await confirmed(page, "Delete", SHOWN)
    await expect(page.get_by_role("button", name="New user")).to_be_visible()
    assert (await shared_node.api.get(f"/auth_user/{name}")).data == {}
    assert (await shared_node.api.put(f"/acl/username/{name}", {"rules": []})).code == 0


async def test_one_client_id_and_a_viewer(open_page: OpenPage, shared_node: DashboardNode) -> None:
    assert (await shared_node.api.post("/auth_clientid", {"clientid": "meter-1", "password": SECRET})).code == 0
    await shared_node.client("meter-1", username="any", password=SECRET.encode())
    page = await open_page("/access/users/clientid/meter-1", role="viewer")
    await expect(row(page, "meter-1")).to_contain_text("connected")
    for button in ("Allow one branch", "Edit", "Delete", "Add rule"):
        await expect(page.get_by_role("button", name=button, exact=True)).to_be_disabled()
    await accessible(page, WIDTHS)
    # A name that is not stored has a page too.
    await page.goto(page.url.replace("clientid/meter-1", "username/nobody"))
    await expect(page.get_by_text("No user with this name is stored.")).to_be_visible()
    await expect(page.get_by_text("No client with this name")).to_be_visible()
    assert (await shared_node.api.delete("/auth_clientid/meter-1")).code == 0


async def test_the_page_of_a_user_in_chinese(open_page: OpenPage) -> None:
    page = await open_page("/access/users/username/ann", locale="zh-CN")
    await page.get_by_role("button", name="授权一个主题分支").click()
    dialog = page.get_by_role("dialog")
    await fill_in(dialog, topic="a/#")
    await expect(dialog.get_by_role("region", name="结果")).to_contain_text("新建")
    await accessible(page, WIDTHS)
