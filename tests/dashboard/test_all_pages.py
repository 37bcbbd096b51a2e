"""Every address of the dashboard, opened by itself on a node that has some of everything, in both languages."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Page

from taipan.broker.mqtt import constants as c
from tests.support.browser import Dashboard, DashboardNode
from tests.support.patience import patience
from tools.pictures.factory import PASSWORD, Factory, make_node

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

PAGES: Final = Path(__file__).parents[2] / "dashboard" / "src" / "pages"
TOPIC: Final = "plant%2Fhall-a%2Fgateway%2Fstatus"
WHO: Final = "clientid=press-03-temperature&action=publish&topic=orders%2Ftruck-4%2Fnext"
WHY: Final = "clientid=archive&topic=orders%2Ftruck-4%2Fnext"

ADDRESSES: Final = {
    "overview": "overview",
    "top": "top",
    "top/clients": "top/clients",
    "top/topics": "top/topics",
    "top/groups": "top/groups",
    "top/dropped": "top/dropped",
    "top/refused": "top/refused",
    "clients": "clients",
    "clients/*": "clients/archive",
    "clients/*/subscriptions": "clients/archive/subscriptions",
    "clients/*/queue": "clients/truck-4/queue",
    "clients/*/inflight": "clients/archive/inflight",
    "clients/*/details": "clients/archive/details",
    "topics": "topics",
    "topics/tree": "topics/tree?prefix=plant%2Fhall-a",
    "topics/topic": "topics/topic?topic=plant%2Fhall-a%2Fpress-02%2Ftemperature",
    "topics/why": f"topics/why?{WHY}",
    "topics/who": f"topics/who?{WHO}",
    "subscriptions": "subscriptions",
    "subscriptions/groups": "subscriptions/groups",
    "subscriptions/groups/*": "subscriptions/groups/%24share%2Fquality%2Fplant%2F%2B%2F%2B%2Ftemperature",
    "retained": "retained?prefix=plant%2Fhall-a",
    "retained/list": "retained/list",
    "retained/delayed": "retained/delayed",
    "retained/message/*": f"retained/message/{TOPIC}",
    "rules": "rules",
    "rules/rule/*": "rules/rule/hot-press",
    "rules/rule/*/edit": "rules/rule/hot-press/edit",
    "rules/new": "rules/new",
    "rules/resources": "rules/resources",
    "rules/resources/*": "rules/resources/tickets",
    "rules/schemas": "rules/schemas",
    "tool": "tool",
    "tool/*": "tool/1",
    "access": "access",
    "access/users": "access/users",
    "access/users/username/*": "access/users/username/press",
    "access/users/clientid/*": "access/users/clientid/scanner",
    "access/rules": "access/rules",
    "access/rules/username/*": "access/rules/username/press",
    "access/rules/clientid/*": "access/rules/clientid/scanner",
    "access/bans": "access/bans",
    "access/apps": "access/apps",
    "access/admins": "access/admins",
    "access/login": "access/login",
    "trouble": "trouble",
    "trouble/alarms": "trouble/alarms",
    "trouble/targets": "trouble/targets",
    "trouble/refused": "trouble/refused",
    "trouble/reasons": "trouble/reasons",
    "trouble/slow": "trouble/slow",
    "trouble/traces": "trouble/traces",
    "trouble/traces/*": "trouble/traces/gateway-yard",
    "trouble/audit": "trouble/audit",
    "node": "node",
    "node/nodes": "node/nodes",
    "node/copies": "node/copies",
    "node/listeners": "node/listeners",
    "node/configuration": "node/configuration",
    "node/log": "node/log",
    "node/connect": "node/connect",
    "node/modules": "node/modules",
    "node/transfer": "node/transfer",
    "node/transfer/*": "node/transfer/{export}",
}
"""What an address looks like, and one of its kind: ``*`` is the name of something."""
ANY: Final = {shape: re.compile(re.escape(shape).replace(r"\*", "[^/]+")) for shape in ADDRESSES}
CHINESE: Final = re.compile(r"[\u4e00-\u9fff]")
LANGUAGES: Final = {"en-US": "en", "zh-CN": "zh-CN"}

# What is wrong on the page, and where its links lead.
READ: Final = """() => {
  const seen = (one) => one.getClientRects().length > 0;
  const wrong = [];
  const awaited = document.querySelectorAll(".reading, .table-waiting").length;
  if (awaited) wrong.push(`${awaited} parts that are still being read`);
  const heads = [...document.querySelectorAll("h1")].filter(seen);
  if (heads.length !== 1) wrong.push(`${heads.length} headings of the first level`);
  const head = heads[0]?.textContent.trim() ?? "";
  if (!head) wrong.push("no heading");
  for (const table of document.querySelectorAll("table")) {
    if (!seen(table) || table.tBodies[0]?.rows.length) continue;
    const word = table.nextElementSibling?.textContent.trim();
    if (!word) wrong.push(`an empty table without a word: ${table.caption?.textContent}`);
  }
  for (const one of document.querySelectorAll('.panel.bad[role="alert"]')) wrong.push(`an error: ${one.textContent}`);
  const links = [...document.querySelectorAll('a[href^="#/"]')].map((one) => one.getAttribute("href").slice(2));
  const words = document.querySelector("#pages nav")?.textContent ?? "";
  return { wrong, head, links, words, title: document.title, lang: document.documentElement.lang };
}"""


def keys_of_tabs() -> set[str]:
    """Return the addresses of all tabs, as the pages list them."""
    found = set()
    for file in PAGES.glob("*.tsx"):
        for keys in re.findall(r"(?m)^const KEYS = \[(.*)\] as const;", file.read_text("utf-8")):
            found |= {f"{file.stem}/{key}" for key in re.findall(r'"(\w+)"', keys)}
    return found


async def fill(node: DashboardNode) -> str:
    """Add what the scene lacks, and return the name of an export."""
    truck = await node.client("filler", username="logistics", password=PASSWORD.encode())
    await truck.publish("$delayed/3600/orders/truck-4/next", b"{}", qos=1)
    away = await node.client(
        "away", username="logistics", password=PASSWORD.encode(), properties={c.SESSION_EXPIRY_INTERVAL: 600}
    )
    await away.disconnect()
    for path, body in (
        ("/auth_clientid", {"clientid": "scanner", "password": PASSWORD}),
        ("/acl", {"clientid": "scanner", "topic": "scans/#", "action": "pub", "access": "allow"}),
        (
            "/schemas",
            {"name": "reading", "parser_type": "json", "schema": '{"required": ["value"]}', "descr": "A reading"},
        ),
        ("/alarm_targets", {"id": "desk", "type": "mqtt", "config": {"topic": "alarms"}}),
    ):
        reply = await node.api.post(path, body)
        assert reply.code == 0, (path, reply.text)
    name: str = (await node.api.post("/data/export", {})).data["filename"]
    return name


def faults(found: Any, lang: str) -> list[str]:
    """Return what is wrong of what ``READ`` has found."""
    wrong: list[str] = list(found["wrong"])
    name, _, product = found["title"].partition(" · ")
    if not name or product != "Taipan":
        wrong.append(f"title {found['title']!r}")
    if found["lang"] != lang:
        wrong.append(f"language {found['lang']!r}")
    for what in (name, found["words"]):
        if bool(CHINESE.search(what)) != (lang != "en"):
            wrong.append(f"in the wrong language: {what!r}")
    return wrong


async def look(dashboard: Dashboard, page: Page, address: str, lang: str) -> tuple[list[str], set[str]]:
    """Open an address in an empty window; return what is wrong, and the addresses that the page leads to."""
    await page.goto("about:blank")
    await dashboard.go(page, f"/{address}")
    found = await page.evaluate(READ)
    with suppress(TimeoutError):
        async with asyncio.timeout(patience(10)):
            while faults(found, lang):  # of what is still being read
                await asyncio.sleep(0.1)
                found = await page.evaluate(READ)
    wrong = [*faults(found, lang), *dashboard.watch.seen]
    dashboard.watch.seen.clear()
    return wrong, {link.partition("?")[0] for link in found["links"]}


@pytest.mark.parametrize("locale", LANGUAGES)
async def test_every_address_opens_by_itself(
    tmp_path: Path, open_dashboard: Callable[[DashboardNode], Dashboard], locale: str
) -> None:
    """Without an error, with a heading and a title, and without an empty table that has no word. No page leads to an
    address that is not in the list."""
    tabs = keys_of_tabs()
    assert len(tabs) > 25 and tabs <= set(ADDRESSES)
    node = await make_node(tmp_path).start()
    factory = Factory(node)
    wrong: dict[str, list[str]] = {}
    unknown: set[str] = set()
    reached: set[str] = set()
    try:
        await factory.start()
        export = await fill(node)
        dashboard = open_dashboard(node)
        page = await dashboard.open("/overview", locale=locale)
        for shape, address in ADDRESSES.items():
            problems, links = await look(dashboard, page, address.replace("{export}", export), LANGUAGES[locale])
            if problems:
                wrong[shape] = problems
            for link in links:
                shapes = {shape for shape, pattern in ANY.items() if pattern.fullmatch(link)}
                reached |= shapes
                unknown |= set() if shapes else {link}
    finally:
        await factory.stop()
        await node.stop()
    assert not wrong, "\n".join(f"{address}: {'; '.join(problems)}" for address, problems in wrong.items())
    assert not unknown, unknown
    assert len(reached) > 45
