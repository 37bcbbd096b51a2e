"""Pages of other sites try to change things with the credentials that a browser adds by itself."""

import logging
from typing import Any

import msgspec
import pytest

from taipan.management.configuration.settings import ManagementSettings
from tests.support.api import APP_ID, SECRET, ManagedNode, Reply, managed_node

pytestmark = pytest.mark.asyncio

APP = b'{"app_id":"intruder","name":"x","secret":"y"}'
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
EVIL = {"Origin": "https://evil.example"}
FOREIGN = {
    "another origin": EVIL,
    "no origin that can be told": {"Origin": "null"},
    "another port of this machine": {"Origin": "http://127.0.0.1:1"},
    "no URL": {"Origin": "127.0.0.1"},
    "a cross-site page": {"Sec-Fetch-Site": "cross-site"},
    "a page of another port or sub-domain": {"Sec-Fetch-Site": "same-site"},
    "an unknown word": {"Sec-Fetch-Site": "maybe"},
    "a form of a browser that says no origin": {**FORM, "Upgrade-Insecure-Requests": "1"},
    "text of a browser that says no origin": {"Content-Type": "text/plain; charset=utf-8", "Sec-Fetch-Mode": "no-cors"},
    "a file of a browser that says no origin": {
        "Content-Type": "multipart/form-data; boundary=x",
        "Upgrade-Insecure-Requests": "1",
    },
}


async def make_app(node: ManagedNode, headers: dict[str, str]) -> Reply:
    return await node.api.ask("POST", "/apps", raw=APP, headers=headers)


def refusals(node: ManagedNode) -> dict[str, int]:
    return {key: n for key, n in node.server.metrics.refusals.snapshot().items() if key.startswith("api_")}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
async def test_a_page_of_another_site_changes_nothing(headers: dict[str, str]) -> None:
    async with managed_node() as node:
        for sent in (headers, {**headers, "Content-Type": headers.get("Content-Type", "text/plain")}):
            reply = await make_app(node, sent)
            assert (reply.status, reply.code) == (400, 108)
            assert "setting management.allowed_origins" in reply.json["message"]
        assert [app["app_id"] for app in (await node.api.get("/apps")).data] == [APP_ID]
        reason = "api_form" if "Content-Type" in headers else "api_origin"
        assert refusals(node) == {reason: 2}
        assert (
            f'taipan_refusals_total{{reason="{reason}"}} 2'
            in (await node.api.get("/emqx_prometheus", type="prometheus")).text
        )


async def test_it_guesses_no_secret_either() -> None:
    async with managed_node() as node:
        for _ in range(30):
            node.api.app = (APP_ID, "a guess")
            assert (await make_app(node, EVIL)).status == 400
        node.api.app = (APP_ID, SECRET)
        assert (await node.api.get("/brokers")).code == 0


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_every_method_that_changes(method: str) -> None:
    async with managed_node() as node:
        reply = await node.api.ask(method, f"/apps/{APP_ID}", raw=b"{}", headers=EVIL)
        assert (reply.status, reply.code) == (400, 108)


OWN: dict[str, dict[str, str]] = {
    "a program": {},
    "curl -d": FORM,
    "PowerShell": {**FORM, "User-Agent": "Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) WindowsPowerShell/5.1"},
    "a page from here": {"Origin": "{url}", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"},
    "a page from here, of an older browser": {"Origin": "{url}"},
    "a page from here that calls its JSON text": {"Origin": "{url}", "Content-Type": "text/plain"},
    "a page behind a proxy that changes Host": {"Origin": "https://panel.example", "Sec-Fetch-Site": "same-origin"},
    "a page behind a proxy with certificates": {"Origin": "https://panel.example", "Host": "panel.example"},
    "the same with the port said": {"Origin": "https://Panel.example", "Host": "panel.example:443"},
    "an extension of the browser": {"Origin": "chrome-extension://abc", "Sec-Fetch-Site": "none"},
}


@pytest.mark.parametrize("headers", OWN.values(), ids=OWN)
async def test_programs_and_pages_of_the_same_origin_notice_nothing(headers: dict[str, str]) -> None:
    async with managed_node() as node:
        sent = {name: value.format(url=node.management.url) for name, value in headers.items()}
        assert (await make_app(node, sent)).code == 0
        assert refusals(node) == {}


async def test_reading_is_as_it_was() -> None:
    async with managed_node() as node:
        for method in ("GET", "HEAD"):
            reply = await node.api.ask(method, "/brokers", headers={**EVIL, "Sec-Fetch-Site": "cross-site"})
            assert reply.status == 200
            assert "Access-Control-Allow-Origin" not in reply.headers  # so the page cannot read it


async def test_other_origins_that_may_and_a_reload_of_them(caplog: pytest.LogCaptureFixture) -> None:
    table: dict[str, Any] = {"bind": "127.0.0.1:0"}
    async with managed_node({**table, "allowed_origins": ["https://Panel.example"]}) as node:
        panel = {"Origin": "https://panel.example", "Sec-Fetch-Site": "cross-site"}
        assert (await make_app(node, panel)).code == 0
        settings: ManagementSettings = node.management.settings
        with caplog.at_level(logging.WARNING, "taipan.management.http.cross_site"):
            changed = msgspec.structs.replace(settings, allowed_origins=["https://other.example"])
            node.management.check(changed, node.management.history.settings)
            node.management.reload(changed)
            for _ in range(3):
                assert (await make_app(node, panel)).code == 108
        (line,) = caplog.messages
        assert line.startswith(
            "api_request_refused reason=api_origin count=1 setting=management.allowed_origins address=127."
        )
        assert "https://panel.example" in line


NAMES = {
    "Mqtt.example.org": True,
    "mqtt.example.org:8081": True,
    "mqtt.example.org.": True,
    "localhost:8081": True,
    "127.0.0.1:8081": True,
    "[::1]:8081": True,
    "192.0.2.7": True,
    "rebound.example:8081": False,
    "mqtt.example.org.evil.example": False,
    "127.0.0.1.evil.example": False,
}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("name", NAMES)
async def test_host_names(name: str, method: str) -> None:
    async with managed_node({"host_names": ["mqtt.example.org"]}) as node:
        path = "/brokers" if method == "GET" else "/apps"
        reply = await node.api.ask(method, path, raw=None if method == "GET" else APP, headers={"Host": name})
        if NAMES[name]:
            assert reply.code == 0
        else:
            assert (reply.status, reply.code) == (400, 108) and "management.host_names" in reply.json["message"]
            assert refusals(node) == {"api_host": 1}


async def test_any_name_unless_some_are_given() -> None:
    async with managed_node() as node:
        assert (await node.api.ask("GET", "/brokers", headers={"Host": "anything.example"})).code == 0
