"""The content of each picture: a page of the dashboard by its address, and the steps before the picture."""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from playwright.async_api import Page, expect

from tests.support.browser import DashboardNode, until
from tests.support.forms import fill_in, row, send

from .factory import PASSWORD

Act = Callable[[Page, DashboardNode], Awaitable[None]]


class Shot(NamedTuple):
    """A picture. ``page``: its file in ``dashboard/src/pages``. ``shows``: the selector of an element that must be
    present."""

    name: str
    page: str
    path: str
    shows: str
    act: Act | None = None
    logged_in: bool = True


async def _charts(page: Page, node: DashboardNode) -> None:
    await until(page, "document.querySelectorAll('canvas').length >= 7")


async def _reasons(page: Page, node: DashboardNode) -> None:
    await until(page, "document.querySelectorAll('canvas').length === 1")


async def _topics(page: Page, node: DashboardNode) -> None:
    await expect(row(page, "press-02")).to_contain_text("/s")


async def _rule_editor(page: Page, node: DashboardNode) -> None:
    await expect(page.locator("[data-result]")).not_to_be_empty()
    await page.get_by_label("Description").fill("Press that is too hot")


async def _log_in(page: Page, node: DashboardNode) -> None:
    await send(page, clientid="press-03-temperature", username="press", password="of last year")
    await expect(page.locator(".panel.bad")).to_be_visible()


async def _branch(page: Page, node: DashboardNode) -> None:
    await page.get_by_role("button", name="Allow one branch").click()
    await fill_in(page.get_by_role("dialog"), name="pump", topic="plant/hall-b/pump/#")
    await expect(page.get_by_role("dialog").get_by_role("region", name="Result")).to_contain_text("new")


async def _tool(page: Page, node: DashboardNode) -> None:
    await page.keyboard.press("n")
    await send(page.get_by_role("dialog"), clientid="from-the-page", username="quality", password=PASSWORD)
    await expect(page.get_by_role("heading", name="connected")).to_be_visible()
    heading = page.get_by_role("heading", name="Subscribe", exact=True)
    subscribing = page.locator("section").filter(has=heading).last
    await send(subscribing, filter="plant/hall-a/+/temperature", qos="1")
    await expect(page.locator("tbody tr").nth(7)).to_be_visible()
    await page.evaluate("() => document.querySelector('tbody').closest('section').scrollIntoView({ block: 'center' })")


async def _import(page: Page, node: DashboardNode) -> None:
    await page.get_by_role("button", name="Export now").click()
    await row(page, "broker-export-").first.get_by_role("link", name="Preview").click()
    await page.get_by_label("Show unchanged records").check()
    await expect(page.locator("tbody tr").nth(3)).to_be_visible()


WHY: Final = "clientid=archive&topic=orders%2Ftruck-4%2Fnext"
WHO: Final = "clientid=press-03-temperature&action=publish&topic=orders%2Ftruck-4%2Fnext"
SQL: Final = (
    "SELECT%20payload.value%20as%20celsius%2C%20clientid%20FROM%20%22plant%2F%2B%2F%2B%2Ftemperature%22"
    "%20WHERE%20payload.value%20%3E%2082"
)
SHOTS: Final = (
    Shot("login", "overview", "/overview", ".openid", logged_in=False),
    Shot("overview", "overview", "/overview", ".tile-value", _charts),
    Shot("top-clients", "top", "/top/clients", "tbody tr"),
    Shot("clients", "clients", "/clients", "tbody tr"),
    Shot("client", "clients", "/clients/archive", ".tile-value"),
    Shot("topics-tree", "topics", "/topics/tree?prefix=plant%2Fhall-a", "tbody tr", _topics),
    Shot("topics-why", "topics", f"/topics/why?{WHY}", "tbody tr"),
    Shot("topics-who", "topics", f"/topics/who?{WHO}", "tbody tr"),
    Shot("subscriptions", "subscriptions", "/subscriptions/groups", "tbody tr"),
    Shot("retained", "retained", "/retained?prefix=plant%2Fhall-a", "tbody tr"),
    Shot("rules", "rules", "/rules", "tbody tr"),
    Shot("rules-one", "rules", "/rules/rule/hot-press", ".flow"),
    Shot("rules-editor", "rules", f"/rules/new?sql={SQL}", "[data-editor] .cm-content", _rule_editor),
    Shot("rules-resource", "rules", "/rules/resources/tickets", "tbody tr"),
    Shot("tool", "tool", "/tool", "h1", _tool),
    Shot("access-users", "access", "/access/users", "tbody tr"),
    Shot("access-user", "access", "/access/users/username/press", "tbody tr"),
    Shot("access-branch", "access", "/access/users", "tbody tr", _branch),
    Shot("access-try-a-login", "access", "/access/login", "form", _log_in),
    Shot("trouble-alarms", "trouble", "/trouble/alarms", "tbody tr"),
    Shot("trouble-refused", "trouble", "/trouble/refused", "tbody tr"),
    Shot("trouble-reasons", "trouble", "/trouble/reasons", "tbody tr", _reasons),
    Shot("trouble-trace", "trouble", "/trouble/traces/gateway-yard", "[role=log]"),
    Shot("node-listeners", "node", "/node/listeners", "tbody tr"),
    Shot("node-configuration", "node", "/node/configuration?origin=changed", "tbody tr"),
    Shot("node-import", "node", "/node/transfer", "h1", _import),
)
PAGES: Final = {shot.name: shot.page for shot in SHOTS}
