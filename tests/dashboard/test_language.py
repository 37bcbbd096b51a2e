"""The dashboard in Chinese: chosen by the browser and by hand, and no English text of ours is left on any page."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import Dashboard, DashboardNode, accessible
from tests.support.forms import row
from tools.pictures.factory import Factory, make_node
from tools.pictures.shots import SHOTS

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
TEXTS: Final = Path(__file__).parents[2] / "dashboard" / "src" / "texts"
STRING: Final = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
INSERTED: Final = re.compile(r"\$\{(?:[^{}`]|`[^`]*`)*\}")
CHINESE: Final = re.compile(r"[\u4e00-\u9fff]")
WORDS: Final = ("Pages", "Name", "Save", "Client", "connected")
"""Some of those that have to be found."""

# What is drawn, and what is said of it; not what the node has told: its names and sentences.
SHOWN: Final = """() => {
  const told = ".name, code, pre, .log, kbd, [data-editor], .panel.bad";
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walk.nextNode()) {
    const { parentElement, textContent } = walk.currentNode;
    if (!parentElement.closest(told)) found.push(textContent);
  }
  for (const one of document.querySelectorAll("[title], [placeholder], [aria-label]")) {
    if (one.closest("[data-editor]")) continue;
    for (const name of ["title", "placeholder", "aria-label"]) found.push(one.getAttribute(name) ?? "");
  }
  found.push(document.title);
  return found.map((one) => one.trim()).filter((one) => one);
}"""


def literals(file: Path) -> set[str]:
    """The texts in a file; a value that is put in stands there as ``\\0``."""
    text = re.sub(r"(?m)^import .*$|inLanguage\(\"\w+\"", "", file.read_text("utf-8"))
    return {next(filter(None, match.groups()), "") for match in STRING.finditer(INSERTED.sub("\0", text))}


def english() -> re.Pattern[str]:
    """Each text that is another one in Chinese."""
    found: set[str] = set()
    for file in TEXTS.glob("*.ts"):
        found |= literals(file)
    for file in (TEXTS / "zh").glob("*.ts"):
        found -= literals(file)
    assert len(found) > 700 and set(WORDS) <= found
    words = {each for each in found if re.search("[A-Za-z]{2}", each)}
    return re.compile("|".join(map(pattern, sorted(words))))


def pattern(text: str) -> str:
    """Around a short word, as in ``3 of 12``, there are values of one word: the node's own sentences have it, too."""
    return re.escape(text).replace("\0", ".+" if re.search("[A-Za-z]{3}", text) else r"\S+")


MORE: Final = (
    "/overview", "/clients/archive/subscriptions", "/clients/archive/queue", "/clients/archive/inflight",
    "/clients/archive/details", "/clients/nobody", "/topics/topic?topic=plant%2Fhall-a%2Fpress-02%2Ftemperature",
    "/subscriptions", "/retained/list", "/rules/resources", "/rules?view=picture", "/access/rules", "/access/bans",
    "/access/apps", "/access/admins", "/trouble/slow", "/trouble/traces", "/node", "/node/modules", "/node/transfer",
)  # fmt: skip
PAGES: Final = {shot.path: shot.shows for shot in SHOTS if shot.logged_in} | dict.fromkeys(
    MORE, ".empty, tbody tr, dl, .panel"
)


@pytest.fixture(scope="module")
def make_factory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], DashboardNode]:
    return lambda: make_node(tmp_path_factory.mktemp("factory"))


@pytest.mark.slow
async def test_no_english_is_left_on_any_page(
    make_factory: Callable[[], DashboardNode], open_dashboard: Callable[[DashboardNode], Dashboard]
) -> None:
    node = await make_factory().start()
    factory = Factory(node, speed=10)
    left: set[tuple[str, str]] = set()
    ours = english()
    try:
        await factory.start()
        dashboard = open_dashboard(node)
        page = await dashboard.open("/trouble/refused", locale="zh-CN")
        await expect(row(page, "forklift-2")).to_be_visible()
        for path, shows in PAGES.items():
            await dashboard.go(page, path)
            await page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn, 50)))")
            await expect(page.locator(shows).first).to_be_visible()
            await expect(page.locator(".reading, .table-waiting")).to_have_count(0)
            await page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            shown = await page.evaluate(SHOWN)
            left |= {(path, text) for text in shown if ours.fullmatch(text)}
            assert any(CHINESE.search(text) for text in shown), path
    finally:
        await factory.stop()
        await node.stop()
    assert left == set()


async def test_the_browser_chooses(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/clients", locale="zh-CN")
    await expect(page.get_by_role("heading", level=1)).to_have_text("客户端")
    await expect(page).to_have_title("客户端 · Taipan")
    assert await page.evaluate("document.documentElement.lang") == "zh-CN"
    await shared_node.client("porch")
    await row(page, "porch").locator("time").first.hover()
    await accessible(page)
    english = await open_page("/clients", locale="de-DE")
    await expect(english.get_by_role("heading", level=1)).to_have_text("Clients")
    assert await english.evaluate("document.documentElement.lang") == "en"
    # Who reads English does not load the other texts.
    for opened, chunks in ((page, True), (english, False)):
        names = await opened.evaluate("() => performance.getEntriesByType('resource').map((one) => one.name)")
        assert any(re.search(r"/assets/zh-[^/]+\.js$", name) for name in names) is chunks, names


async def test_the_login_is_in_the_same_language(dashboard: Dashboard, shared_node: DashboardNode) -> None:
    page = await dashboard.open("/overview", role=None, locale="zh-CN")
    name, secret = page.get_by_role("textbox", name="用户名", exact=True), page.get_by_label("密码")
    await accessible(page)
    await name.fill("admin")
    await secret.fill("wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text("用户名或密码错误。")
    # By hand before the login.
    await page.get_by_label("语言").select_option("English")
    await expect(page.get_by_role("button", name="Log in")).to_be_visible()
    assert await page.evaluate("document.documentElement.lang") == "en"
    await page.get_by_label("Language").select_option("")
    await expect(page.get_by_role("button", name="登录")).to_be_visible()
    assert await page.evaluate("() => Object.keys(localStorage)") == []


async def test_by_hand_and_by_the_keyboard(open_page: OpenPage) -> None:
    page = await open_page("/subscriptions?qos=1")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Subscriptions")
    language = page.get_by_label("Language")
    await language.focus()
    await language.press("End")
    await expect(page.get_by_role("heading", level=1)).to_have_text("订阅")
    assert page.url.endswith("#/subscriptions?qos=1")
    # It is kept, also in another tab; keys do what they did.
    other = await page.context.new_page()
    await other.goto(page.url)
    await expect(other.get_by_role("heading", level=1)).to_have_text("订阅")
    await page.keyboard.press("g")
    await page.keyboard.press("c")
    await expect(page.get_by_role("heading", level=1)).to_have_text("客户端")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="键盘快捷键")).to_contain_text("前往客户端")
    await page.keyboard.press("Escape")
    await page.get_by_label("语言").select_option("en")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Clients")


async def test_where_the_texts_cannot_be_read_the_page_is_english(dashboard: Dashboard) -> None:
    context = await dashboard.context(locale="zh-CN")
    await context.route("**/assets/zh-*", lambda route: route.fulfill(status=404))
    page = await context.new_page()
    await dashboard.go(page, "/clients")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Clients")
    assert await page.evaluate("document.documentElement.lang") == "en"
