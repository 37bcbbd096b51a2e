"""A login by OpenID Connect in the browser: from the button over the provider's page to the dashboard, and out."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.support.browser import Dashboard, DashboardNode, accessible
from tests.support.openid_provider import CLIENT_ID, SECRET, OpenIdProvider, openid_provider

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

BUTTON = "Log in with OpenID Connect"
TABLE = """
[dashboard.openid]
issuer = "{issuer}"
client_id = "{client}"
client_secret = "{secret}"
dashboard_url = "{url}"
administrators = ["mqtt-admins"]
operators = ["night-shift"]
viewers = ["readers"]
logout_at_provider = true
"""


@pytest_asyncio.fixture(loop_scope="session")
async def provider() -> AsyncIterator[OpenIdProvider]:
    async with openid_provider() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def dashboard(
    browser: Browser,
    provider: OpenIdProvider,
    tmp_path: Path,
    open_dashboard: Callable[[DashboardNode], Dashboard],
) -> AsyncIterator[Dashboard]:
    """Of a node whose users log in at ``provider``."""
    node = DashboardNode(tmp_path)
    table = TABLE.format(issuer=provider.url, client=CLIENT_ID, secret=SECRET, url=node.url)
    node.config.write_text(node.config.read_text("utf-8") + table, "utf-8")
    provider.redirect_uri = f"{node.url}/api/v4/auth/openid/callback"
    await node.start()
    opened = open_dashboard(node)
    opened.watch.allow(provider.url)
    yield opened
    await opened.close()  # before the node: a page would complain
    await node.stop()


async def sign_in(page: Page, user: str) -> None:
    """At the provider's page."""
    await page.get_by_label("User").fill(user)
    await page.get_by_role("button", name="Sign in").click()


async def test_in_and_out(dashboard: Dashboard, provider: OpenIdProvider) -> None:
    page = await dashboard.open("/clients?q=pump", role=None)
    button = page.get_by_role("link", name=BUTTON)
    await expect(button).to_be_visible()
    await accessible(page, (1440, 1024, 390))
    await button.click()
    await sign_in(page, "olga")
    # The page is the one that was left, and no secret is in its address.
    await expect(page.get_by_role("heading", level=1)).to_have_text("Clients")
    assert page.url == f"{dashboard.node.url}/#/clients?q=pump"
    await expect(page.get_by_text("openid:olga")).to_be_visible()
    await expect(page.get_by_text("operator", exact=True)).to_be_visible()
    cookies = await page.context.cookies(dashboard.node.url)
    assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
    assert await page.evaluate("() => Object.keys(sessionStorage)") == []
    await page.reload()
    await expect(page.get_by_text("openid:olga")).to_be_visible()
    await page.goto(f"{dashboard.node.url}/#/access/admins")
    await expect(page.get_by_role("button", name="New dashboard user")).to_be_disabled()
    await expect(page.get_by_role("button", name="Change my password")).to_have_count(0)
    await page.get_by_role("button", name="Log out").click()
    await page.get_by_role("link", name="back").click()
    await expect(button).to_be_visible()
    assert provider.logged_out == 1
    await page.goto(f"{dashboard.node.url}/#/clients")
    await expect(button).to_be_visible()


@pytest.mark.parametrize(
    ("locale", "user", "words"),
    [
        ("en-US", "nobody", "Your account has no role here."),
        ("zh-CN", "nobody", "您的账户在此没有角色。"),
        ("en-US", "cancel", "The identity provider refused the login, or you cancelled it."),
        ("zh-CN", "cancel", "身份提供方拒绝了登录，或者您取消了登录。"),
    ],
)
async def test_who_is_refused_reads_why(dashboard: Dashboard, locale: str, user: str, words: str) -> None:
    page = await dashboard.open("/overview", role=None, locale=locale)
    await page.get_by_role("link", name="OpenID Connect").click()
    await sign_in(page, user)
    await expect(page.get_by_role("alert")).to_contain_text(words)
    assert page.url == f"{dashboard.node.url}/#/"
    await accessible(page, (1440, 390))
    # With the right user the same form leads to where the first click was.
    await page.get_by_role("link", name="OpenID Connect").click()
    await sign_in(page, "root")
    await expect(page.get_by_text("openid:root")).to_be_visible()
    assert page.url == f"{dashboard.node.url}/#/overview"
    await expect(page.get_by_role("alert")).to_have_count(0)


async def test_the_other_ways_to_fail_have_words(dashboard: Dashboard) -> None:
    page = await dashboard.open("/overview", role=None)
    for reason, words in {
        "state": "more than ten minutes",
        "provider": "cannot reach the identity provider",
        "token": "does not accept",
        "user": "a usable name",
        "busy": "in a few seconds",
        "made-up": "The login with OpenID Connect failed",
        "__proto__": "The login with OpenID Connect failed",
        "constructor": "The login with OpenID Connect failed",
    }.items():
        await page.goto("about:blank")
        await page.goto(f"{dashboard.node.url}/#/?openid={reason}")
        await expect(page.get_by_role("alert")).to_contain_text(words)


async def test_a_session_that_has_ended_is_begun_again_in_another_tab(dashboard: Dashboard) -> None:
    page = await dashboard.open("/overview", role=None)
    await page.get_by_role("link", name=BUTTON).click()
    await sign_in(page, "root")
    await expect(page.get_by_text("openid:root")).to_be_visible()
    answer = await page.context.request.delete(f"{dashboard.node.url}/api/v4/auth", headers={"X-Taipan-Dashboard": "1"})
    assert answer.ok
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Your session has expired")
    await accessible(page, (1440, 390))
    async with page.context.expect_page() as opening:
        await dialog.get_by_role("link", name=BUTTON).click()
    tab = await opening.value
    await sign_in(tab, "root")
    await expect(tab.get_by_text("openid:root")).to_be_visible()
    await expect(dialog).to_have_count(0)


async def test_a_user_with_a_password_sees_nothing_of_it(dashboard: Dashboard, provider: OpenIdProvider) -> None:
    page = await dashboard.open("/access/admins")
    await expect(page.get_by_role("button", name="Change my password")).to_be_visible()
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_role("link", name=BUTTON)).to_be_visible()
    assert provider.logged_out == 0
