"""What is around the pages: login and its end, navigation, keys, themes, addresses, the first view."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, Route, expect

from tests.support.browser import Dashboard, DashboardNode, accessible, until
from tests.support.forms import control, fill_in, submit

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
PAGES = {
    "o": "Overview", "c": "Clients", "t": "Topics", "s": "Subscriptions", "m": "Retained", "r": "Rules",
    "w": "MQTT client", "a": "Access", "p": "Alarms & events", "n": "Node",
}  # fmt: skip


async def test_log_in_and_out(dashboard: Dashboard, shared_node: DashboardNode) -> None:
    page = await dashboard.open("/clients", role=None)
    # The page that is left has fields of that name, too.
    name, secret = page.get_by_role("textbox", name="Username", exact=True), page.get_by_label("Password")
    await expect(name).to_be_focused()
    await accessible(page)
    await name.fill("admin")
    await secret.fill("wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text("Wrong username or password.")
    await secret.fill(shared_node.password)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Clients")
    cookies = await page.context.cookies()
    assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
    await page.get_by_role("button", name="Log out").click()
    await expect(name).to_be_visible()
    await page.reload()
    await expect(name).to_be_visible()
    assert await page.evaluate("() => Object.keys(localStorage)") == []


async def test_a_session_that_ends_is_asked_for_and_the_page_goes_on(
    dashboard: Dashboard, shared_node: DashboardNode
) -> None:
    page = await dashboard.open("/overview")
    await expect(page.locator(".tile").first).to_be_visible()
    # As another window's log-out does it.
    answer = await page.context.request.delete(f"{shared_node.url}/api/v4/auth", headers={"X-Taipan-Dashboard": "1"})
    assert answer.ok
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Your session has expired")
    await expect(page.locator(".tile").first).to_be_visible()
    await dialog.get_by_label("Password").fill("wrong")
    await page.keyboard.press("Enter")
    await expect(dialog.get_by_role("alert")).to_be_visible()
    await accessible(page)
    await dialog.get_by_label("Password").fill(shared_node.password)
    await page.keyboard.press("Enter")
    await expect(dialog).to_have_count(0)
    await expect(page.locator(".live")).to_have_text("live")


@pytest.mark.slow
async def test_what_is_typed_in_a_dialog_outlasts_a_restart(
    own_node: DashboardNode, open_dashboard: Callable[[DashboardNode], Dashboard]
) -> None:
    dashboard = open_dashboard(own_node)
    dashboard.watch.node_may_be_away = True
    context = await dashboard.context()
    user, ban, message = [await context.new_page() for _ in range(3)]
    await own_node.client("loud", username="somebody")
    publisher = await own_node.client("publisher")
    await publisher.publish("kept", b"once", qos=1, retain=True)
    await dashboard.go(user, "/access/users")
    await user.get_by_role("button", name="New user").click()
    await fill_in(user.get_by_role("dialog"), name="porch", password="a-long-Password-1")
    await dashboard.go(ban, "/clients/loud")
    await ban.get_by_role("button", name="Ban").click()
    # One that is banned by what the node knows of its connection, which ends with the node.
    await fill_in(ban.get_by_role("dialog"), **{"as": "username", "reason": "too loud"})
    await dashboard.go(message, "/retained/message/kept")
    await message.get_by_role("button", name="Publish again").click()
    await fill_in(message.get_by_role("dialog"), payload="twice")
    await own_node.stop()
    await submit(user.get_by_role("dialog"))
    await expect(user.get_by_role("dialog").get_by_role("alert")).to_contain_text("is not responding")
    await own_node.start()
    again = user.get_by_role("dialog", name="Log in again")
    await expect(again).to_contain_text("your input is still in the form")
    await expect(again.get_by_label("Password")).to_be_focused()
    await again.get_by_label("Password").fill(own_node.password)
    await user.keyboard.press("Enter")
    # It is a login of the other windows, too.
    for page in (user, ban, message):
        await expect(page.get_by_role("dialog")).to_have_count(1)
    await expect(control(ban, "reason")).to_have_value("too loud")
    await expect(control(ban, "as")).to_have_value("username")
    await expect(control(message, "payload")).to_have_value("twice")
    await expect(control(user, "name")).to_have_value("porch")
    for page in (user, ban, message):
        await submit(page.get_by_role("dialog"))
        await expect(page.get_by_role("dialog")).to_have_count(0)
    assert [each["username"] for each in (await own_node.api.get("/auth_username")).data] == ["porch"]
    assert [each["who"] for each in (await own_node.api.get("/banned")).data] == ["somebody"]
    assert (await own_node.api.get("/retained/kept")).data["payload"] == "twice"


async def test_a_login_in_one_window_is_one_in_the_other(dashboard: Dashboard, shared_node: DashboardNode) -> None:
    context = await dashboard.context()
    first, second = await context.new_page(), await context.new_page()
    for page in (first, second):
        await dashboard.go(page, "/overview")
        await expect(page.locator(".tile").first).to_be_visible()
    answer = await context.request.delete(f"{shared_node.url}/api/v4/auth", headers={"X-Taipan-Dashboard": "1"})
    assert answer.ok
    for page in (first, second):
        await expect(page.get_by_role("dialog")).to_contain_text("Your session has expired")
    await first.get_by_role("dialog").get_by_label("Password").fill(shared_node.password)
    await first.keyboard.press("Enter")
    for page in (first, second):
        await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(second.locator(".live")).to_have_text("live")


async def test_each_page_by_the_keyboard_and_by_the_navigation(open_page: OpenPage) -> None:
    page = await open_page("/overview")
    heading = page.get_by_role("heading", level=1)
    for key, title in PAGES.items():
        await page.keyboard.press("g")
        await page.keyboard.press(key)
        await expect(heading).to_have_text(title)
        await expect(page).to_have_title(f"{title} · Taipan")
    pages = page.get_by_role("navigation", name="Pages")
    for title in PAGES.values():
        await pages.get_by_role("link", name=title).click()
        await expect(heading).to_have_text(title)
        await expect(pages.locator("[aria-current=page]")).to_have_text(title)
    await page.go_back()
    await expect(heading).to_have_text("Alarms & events")
    await page.go_forward()
    await expect(heading).to_have_text("Node")


async def test_keys_are_told_and_closed(open_page: OpenPage) -> None:
    page = await open_page("/overview")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    await page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    await expect(dialog).to_contain_text("Go to Clients")
    await accessible(page)
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)


async def test_an_address_of_no_page(open_page: OpenPage) -> None:
    page = await open_page("/<img src=x onerror=alert(1)>/‮")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Page not found")
    await expect(page.get_by_text("<img src=x onerror=alert(1)>")).to_be_visible()
    await expect(page.get_by_text("[RLO]")).to_be_visible()
    await accessible(page)
    await page.get_by_role("link", name="Go to the overview").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


async def test_the_theme_is_kept(open_page: OpenPage) -> None:
    page = await open_page("/overview", color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(ground)
    await page.get_by_label("Theme").select_option("dark")
    assert await page.evaluate(ground) != light
    await page.reload()
    await expect(page.get_by_label("Theme")).to_have_value("dark")
    assert await page.evaluate(ground) != light
    await page.get_by_label("Theme").select_option("system")
    assert await page.evaluate(ground) == light
    await page.emulate_media(color_scheme="dark")
    assert await page.evaluate(ground) != light


async def test_a_narrow_window_has_a_menu(open_page: OpenPage) -> None:
    page = await open_page("/overview", viewport={"width": 390, "height": 844})
    menu = page.get_by_role("button", name="Menu")
    link = page.get_by_role("link", name="Access")
    await expect(link).to_be_hidden()
    await menu.click()
    await expect(link).to_be_visible()
    await accessible(page, (390,))
    await link.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Access")
    await expect(link).to_be_hidden()


async def test_two_windows_of_one_login(dashboard: Dashboard) -> None:
    context = await dashboard.context()
    first, second = await context.new_page(), await context.new_page()
    for page in (first, second):
        await dashboard.go(page, "/overview")
        await expect(page.locator(".tile").first).to_be_visible()
    await first.get_by_role("button", name="Log out").click()
    await expect(first.get_by_label("Username")).to_be_visible()
    await expect(second.get_by_role("dialog")).to_contain_text("Your session has expired")
    await second.get_by_role("button", name="Log in as another user").click()
    await expect(second.get_by_label("Username")).to_be_visible()


async def test_what_takes_long_is_said(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/overview")
    await expect(page.locator(".tile").first).to_be_visible()
    reading = page.locator(".reading")
    await expect(reading).to_have_count(0)
    held = asyncio.Event()

    async def hold(route: Route) -> None:
        await held.wait()
        await route.continue_()

    # The program of the page, and then what it asks for.
    await page.route("**/assets/clients-*", hold)
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Clients").click()
    await expect(reading).to_have_text("Loading…")
    await accessible(page, (1280,))
    held.set()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Clients")
    await expect(reading).to_have_count(0)
    held.clear()
    await page.route("**/api/v4/nodes", hold)
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Node").click()
    await expect(reading).to_have_text("Loading…")
    held.set()
    await expect(reading).to_have_count(0)
    await expect(page.get_by_role("table", name="Nodes")).to_be_visible()
    await page.unroute_all(behavior="wait")


async def test_on_paper_there_is_the_page_alone_and_light(open_page: OpenPage) -> None:
    page = await open_page("/clients", color_scheme="dark")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Clients")
    await page.emulate_media(media="print", color_scheme="dark")
    for part in (".side", ".filters", ".table-tools"):
        await expect(page.locator(part).first).to_be_hidden()
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(244, 246, 248)"
    await page.emulate_media(media="screen")
    await page.get_by_label("Theme").select_option("dark")
    await page.emulate_media(media="print")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(244, 246, 248)"
    await page.goto(page.url.replace("/clients", "/overview"))
    await page.emulate_media(media="screen")
    await until(page, "document.querySelectorAll('canvas').length >= 7")
    await page.emulate_media(media="print")
    await page.set_viewport_size({"width": 700, "height": 900})
    wide = await page.locator("canvas").evaluate_all(
        "(all) => all.filter((one) => one.getBoundingClientRect().right > innerWidth).length"
    )
    assert wide == 0
    await page.emulate_media(media="screen")
    await page.get_by_role("button", name="Menu").click()
    await page.get_by_label("Theme").select_option("system")


@pytest.mark.slow
async def test_the_first_view_is_interactive_soon_on_a_slow_processor(dashboard: Dashboard) -> None:
    context = await dashboard.context()
    page = await context.new_page()
    session = await context.new_cdp_session(page)
    await session.send("Emulation.setCPUThrottlingRate", {"rate": 4})
    await dashboard.go(page, "/overview")
    await until(page, "document.querySelectorAll('canvas').length >= 7")
    # Not a measurement of this machine, which may be busy: what was transferred, and that no chunk came too many.
    names = await page.evaluate(
        "() => performance.getEntriesByType('resource').map((one) => [one.name, one.encodedBodySize])"
    )
    files = {name.rpartition("/")[2]: size for name, size in names if "/api/" not in name}
    assert sum(files.values()) <= 122_880, files
    assert not any(name.startswith(("setup-", "cborg-", "mqtt")) for name in files), files


async def test_a_front_end_that_compiles_its_templates_is_drawn(
    tmp_path_factory: pytest.TempPathFactory, open_dashboard: Callable[[DashboardNode], Dashboard]
) -> None:
    """As Vue 2 does, which EMQX 4's own front-end is made with: its templates become functions of text."""
    pages = tmp_path_factory.mktemp("pages")
    (pages / "index.html").write_text(
        '<!doctype html><html lang="en"><head><title>Other</title></head>'
        '<body><div id="app"></div><script src="/app.js"></script></body></html>'
    )
    (pages / "app.js").write_text(
        "const render = new Function('with (this) { return `<h1>${title}</h1>` }');\n"
        "document.getElementById('app').innerHTML = render.call({ title: 'compiled' });\n"
    )
    table = f'static_dir = "{pages}"\n'  # CONFIG ends in [dashboard]
    node = DashboardNode(tmp_path_factory.mktemp("node"), table)
    await node.start()
    try:
        page = await open_dashboard(node).open("", role=None)
        await expect(page.get_by_role("heading", level=1)).to_have_text("compiled")
    finally:
        await node.stop()
