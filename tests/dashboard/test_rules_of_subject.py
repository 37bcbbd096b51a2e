"""Access: the rules of one subject are edited in their place, and ordered by dragging or by keys."""

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Locator, Page, expect

from tests.support.api import segment
from tests.support.browser import DashboardNode, accessible
from tests.support.forms import HOSTILE, SHOWN, row

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
WIDTHS = (1440, 1024, 390)


def rule(topic: str, action: str = "pubsub", access: str = "allow") -> dict[str, str]:
    return {"topic": topic, "action": action, "access": access}


async def put(node: DashboardNode, path: str, *rules: dict[str, str]) -> None:
    reply = await node.api.put(path, {"rules": list(rules)})
    assert reply.code == 0, reply.text


async def stored(node: DashboardNode, path: str) -> list[tuple[str, str, str]]:
    return [(each["topic"], each["action"], each["access"]) for each in (await node.api.get(path)).data]


async def topics(page: Page) -> list[str]:
    fields = page.get_by_label("Topic of rule")
    return [await field.input_value() for field in await fields.all()]


async def saved(page: Page) -> None:
    await page.get_by_role("button", name="Save rules").click()
    await expect(page.get_by_text("Unsaved changes")).to_have_count(0)


async def drag(page: Page, handle: Locator, over: Locator, below: bool) -> None:
    start, target = await handle.bounding_box(), await over.bounding_box()
    assert start is not None and target is not None
    await page.mouse.move(start["x"] + start["width"] / 2, start["y"] + start["height"] / 2)
    await page.mouse.down()
    await page.mouse.move(target["x"] + 20, target["y"] + target["height"] * (0.9 if below else 0.1), steps=4)
    await page.mouse.up()


@pytest.mark.parametrize("width", WIDTHS)
async def test_order_by_dragging(open_page: OpenPage, shared_node: DashboardNode, width: int) -> None:
    path = f"/acl/username/dragged-{width}"
    await put(shared_node, path, rule("a/#"), rule("b/#", "pub"), rule("c/#", "sub", "deny"), rule("d/#"))
    page = await open_page(f"/access/rules/username/dragged-{width}", viewport={"width": width, "height": 1400})
    lines = page.locator("[data-line]")
    handles = page.locator(".line-handle")
    await expect(lines).to_have_count(4)
    await drag(page, handles.nth(0), lines.nth(2), below=True)
    assert await topics(page) == ["b/#", "c/#", "a/#", "d/#"]
    await drag(page, handles.nth(3), lines.nth(0), below=False)
    assert await topics(page) == ["d/#", "b/#", "c/#", "a/#"]
    # Escape ends it, and the line stays.
    box = await handles.nth(0).bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 5, box["y"] + 5)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 5, box["y"] + 200)
    await page.keyboard.press("Escape")
    await page.mouse.up()
    assert await topics(page) == ["d/#", "b/#", "c/#", "a/#"]
    # Nothing is stored before it is saved.
    assert next(topic for topic, *_ in await stored(shared_node, path)) == "a/#"
    await accessible(page, (width,))
    await saved(page)
    assert await stored(shared_node, path) == [
        ("d/#", "pub", "allow"),
        ("d/#", "sub", "allow"),
        ("b/#", "pub", "allow"),
        ("c/#", "sub", "deny"),
        ("a/#", "pub", "allow"),
        ("a/#", "sub", "allow"),
    ]


async def test_order_by_keys(open_page: OpenPage, shared_node: DashboardNode) -> None:
    path = "/acl/clientid/keyed"
    await put(shared_node, path, rule("a", "pub"), rule("b", "pub"), rule("c", "pub"))
    page = await open_page("/access/rules/clientid/keyed")
    await page.get_by_role("button", name="Move rule 1 down").focus()
    await page.keyboard.press("Enter")
    assert await topics(page) == ["b", "a", "c"]
    await expect(page.get_by_role("button", name="Move rule 2 down")).to_be_focused()
    await expect(page.get_by_text("The rule is now number 2 of 3.")).to_be_attached()
    await page.keyboard.press("Enter")
    # At the end its button is off, and the other one has the focus.
    await expect(page.get_by_role("button", name="Move rule 3 up")).to_be_focused()
    await expect(page.get_by_role("button", name="Move rule 3 down")).to_be_disabled()
    await expect(page.get_by_role("button", name="Move rule 1 up")).to_be_disabled()
    assert await topics(page) == ["b", "c", "a"]
    await saved(page)
    assert [topic for topic, *_ in await stored(shared_node, path)] == ["b", "c", "a"]


async def test_rules_are_edited_in_their_place(open_page: OpenPage, shared_node: DashboardNode) -> None:
    path = f"/acl/username/{segment(HOSTILE)}"
    await put(shared_node, path, rule("diary/#", "pub", "deny"), rule("open/#"))
    page = await open_page("/access/rules")
    await row(page, SHOWN).first.get_by_role("link", name="Edit").click()
    await expect(page.get_by_role("heading", name=SHOWN)).to_be_visible()
    for width in WIDTHS:
        await accessible(page, (width,))
    # What is wrong is said at its rule, and nothing is stored.
    await page.get_by_label("Topic of rule 2").fill("open/#/no")
    await page.get_by_role("button", name="Save rules").click()
    await expect(page.locator("[data-line='1'] .wrong")).to_contain_text("#")
    await accessible(page, (1440,))
    await page.get_by_label("Topic of rule 2").fill("open/%u/#")
    await page.get_by_label("Listener of rule 2").fill("nowhere")
    await page.get_by_role("button", name="Save rules").click()
    await expect(page.locator("[data-line='1'] .wrong")).to_contain_text("there are tcp, ws")
    await page.get_by_label("Listener of rule 2").fill("tcp")
    await page.get_by_label("Permission of rule 1").select_option("allow")
    await page.get_by_label("Action of rule 1").select_option("sub")
    await page.get_by_role("button", name="Add rule").click()
    await expect(page.get_by_label("Topic of rule 3")).to_be_focused()
    await page.keyboard.type("diary/#")
    await page.get_by_label("Action of rule 3").select_option("sub")
    await page.get_by_role("button", name="Save rules").click()
    await expect(page.locator(".wrong")).to_have_text("Same as rule 1. Delete one of the two.")
    await page.get_by_label("Permission of rule 3").select_option("deny")
    await saved(page)
    assert await stored(shared_node, path) == [
        ("diary/#", "sub", "allow"),
        ("open/%u/#", "pub", "allow"),
        ("open/%u/#", "sub", "allow"),
        ("diary/#", "sub", "deny"),
    ]
    # Discarded: as the node has it.
    await page.get_by_role("button", name="Delete rule 1").click()
    await page.get_by_role("button", name="Discard").click()
    await expect(page.get_by_label("Topic of rule")).to_have_count(3)
    await put(shared_node, path)


async def test_rules_that_another_has_changed_are_not_overwritten(
    open_page: OpenPage, shared_node: DashboardNode
) -> None:
    path = "/acl/$all"
    await put(shared_node, path, rule("mine"))
    page = await open_page("/access/rules?kind=all")
    await page.get_by_label("Topic of rule 1").fill("mine/too")
    await put(shared_node, path, rule("of-another", "pub", "deny"))
    await page.get_by_role("button", name="Save rules").click()
    await expect(page.get_by_role("alert")).to_contain_text("have changed: read them again")
    assert await stored(shared_node, path) == [("of-another", "pub", "deny")]
    await page.get_by_role("button", name="Discard").click()
    await expect(page.get_by_label("Topic of rule 1")).to_have_value("of-another")
    await put(shared_node, path)


async def test_the_order_in_which_rules_are_asked(open_page: OpenPage) -> None:
    page = await open_page("/access/rules?kind=all")
    order = page.get_by_role("list", name="Order in which access is checked").get_by_role("listitem")
    await expect(order).to_have_text(
        ["client IDs", "usernames", "anonymous clients", "all clients", "[[access.rules]]", "access.no_match"]
    )
    await expect(order.get_by_role("link", name="all clients")).to_have_attribute("aria-current", "true")
    await order.get_by_role("link", name="usernames").click()
    await expect(page.get_by_label("Rules for")).to_have_value("username")


async def test_a_viewer_reads_the_rules(open_page: OpenPage, shared_node: DashboardNode) -> None:
    await put(shared_node, "/acl/$all", rule("a"), rule("b"))
    page = await open_page("/access/rules?kind=all", role="viewer")
    await expect(page.get_by_label("Topic of rule 2")).to_be_disabled()
    for name in ("Move rule 2 up", "Delete rule 1", "Add rule"):
        await expect(page.get_by_role("button", name=name)).to_be_disabled()
    await drag(page, page.locator(".line-handle").first, page.locator("[data-line]").last, below=True)
    assert await topics(page) == ["a", "b"]
    await put(shared_node, "/acl/$all")


async def test_the_table_in_chinese(open_page: OpenPage, shared_node: DashboardNode) -> None:
    await put(shared_node, "/acl/$anonymous", rule("a"))
    page = await open_page("/access/rules?kind=anonymous", locale="zh-CN")
    await expect(page.get_by_label("规则 1 的主题")).to_have_value("a")
    for width in WIDTHS:
        await accessible(page, (width,))
    await put(shared_node, "/acl/$anonymous")
