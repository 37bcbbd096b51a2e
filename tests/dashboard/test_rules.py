"""Rules: created and tested by hand, triggered by real messages; resources whose rows wait; roles, links, names."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Locator, Page, expect
from playwright.async_api import TimeoutError as PlaywrightTimeout

from taipan.broker.observability.masking import MASK
from tests.support.browser import Dashboard, DashboardNode, accessible
from tests.support.forms import confirmed, fill_in, row, row_action, submit
from tests.support.node import free_port
from tests.support.patience import patience

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
HOSTILE = '<img src=x onerror=alert(1)>\u202e\u0007 & "rule"'
# Of actions: values of the parameters that have no default.
REQUIRED = {
    "cmd": "RPUSH list ${qos}",
    "exchange": "x",
    "routing_key": "k",
    "sql": "insert into t (n) values (${qos})",
    "measurement": "m",
    "fields": {"n": "${qos}"},
    "topic": "rows",
}
HIDDEN = "<img src=x onerror=alert(1)>"


class Sink:
    """A web server that rows are sent to; ``status`` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.rows: asyncio.Queue[Any] = asyncio.Queue()
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        body = await request.text()
        if self.status == 200 and body:
            self.rows.put_nowait(json.loads(body))
        return web.Response(status=self.status)


@pytest_asyncio.fixture(loop_scope="session")
async def sink() -> AsyncIterator[Sink]:
    found = Sink()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/rows"
    yield found
    await runner.cleanup()


async def type_sql(page: Page, sql: str) -> None:
    editor = page.get_by_role("textbox", name="SQL")
    await editor.click()
    await page.keyboard.press("Control+a")
    await page.keyboard.press("Delete")
    await page.keyboard.insert_text(sql)


def result(page: Page) -> Locator:
    return page.locator("[data-result]")


async def make_rule(node: DashboardNode, rule_id: str, sql: str, actions: list[dict[str, Any]], **more: Any) -> None:
    reply = await node.api.post("/rules", {"id": rule_id, "rawsql": sql, "actions": actions, **more})
    assert reply.code == 0, reply.text


async def test_a_rule_whose_server_is_away_says_so_in_the_list(open_page: OpenPage, shared_node: DashboardNode) -> None:
    resource = {"id": "away", "type": "web_hook", "config": {"url": f"http://127.0.0.1:{free_port()}/"}}
    assert (await shared_node.api.post("/resources", resource)).code == 0
    action = {"name": "data_to_webserver", "params": {"$resource": "away"}}
    await make_rule(shared_node, "rule:stuck", 'SELECT * FROM "stuck/#"', [action])
    page = await open_page("/rules")
    stuck = row(page, "rule:stuck")
    await expect(stuck).to_contain_text("resource disconnected")
    publisher = await shared_node.client("publisher")
    for _ in range(3):
        await publisher.publish("stuck/1", b"{}", qos=1)
    await expect(stuck.locator(".badge.warn")).to_have_text("3")
    await accessible(page)
    # What is not shown, such as the last failure, sets no row's height: two lines at most, on a phone a card.
    for width in (390, 1024):
        await page.set_viewport_size({"width": width, "height": 900})
        await expect(page.get_by_role("columnheader", name="Last failure")).to_have_count(0)
        box = await stuck.bounding_box()
        assert box is not None and box["height"] < (190 if width == 390 else 90), width
        await expect(stuck).to_contain_text("resource disconnected")
    await page.set_viewport_size({"width": 1280, "height": 900})
    await stuck.get_by_role("link", name="away").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("away")
    for path in ("/rules/rule:stuck", "/resources/away"):
        assert (await shared_node.api.delete(path)).code == 0


async def test_a_rule_is_created_tested_triggered_changed_and_deleted(
    open_page: OpenPage, shared_node: DashboardNode, sink: Sink
) -> None:
    page = await open_page("/rules")
    await expect(page.get_by_text("No rules found.")).to_be_visible()
    await accessible(page)
    await page.keyboard.press("n")
    await expect(page.get_by_role("heading", level=1)).to_have_text("New rule")
    # What the empty editor says can be read.
    await expect(page.locator("[data-editor] .cm-placeholder").first).to_be_visible()
    await accessible(page)

    # Without SQL; then SQL that is wrong at a place.
    await page.get_by_role("button", name="Create rule").click()
    await expect(page.get_by_role("alert")).to_contain_text("Enter the SQL")
    await type_sql(page, 'SELECT nope(payload) FROM "garden/#"')
    wrong = page.locator(".wrong")
    await expect(wrong).to_contain_text("nope")
    await expect(page.locator("[data-editor] .cm-lintRange-error").first).to_have_text("nope")

    # The test: on the example, then on what has really come.
    await type_sql(page, 'SELECT payload.t as t, clientid FROM "garden/#" WHERE payload.t > 20')
    await expect(wrong).to_have_count(0)
    await expect(result(page)).to_contain_text("does not match FROM or WHERE")
    await page.get_by_role("button", name="Live events").click()
    gardener = await shared_node.client("gardener")
    use = page.get_by_role("button", name="Use").first
    async with asyncio.timeout(patience(40)):
        while await use.count() == 0:  # The stream is open from some moment on.
            # Not what was invented is tested now.
            await expect(result(page)).not_to_contain_text("does not match FROM or WHERE")
            await gardener.publish("garden/bed", b'{"t": 21, "deep": {"er": 1}}', qos=1)
            await asyncio.sleep(0.3)
    await expect(result(page)).to_contain_text("gardener")
    # Each live event says whether the rule takes it, and again when the SQL changes.
    events = page.get_by_role("list", name="Events, latest first").locator("li")
    await gardener.publish("garden/cold", b'{"t": 3}', qos=1)
    await gardener.publish("garden/odd", b"no json", qos=1)
    await expect(events.filter(has_text="garden/bed").first).to_contain_text("match")
    await expect(events.filter(has_text="garden/cold").first).to_contain_text("no match")
    await expect(events.filter(has_text="garden/odd").first).to_contain_text("the payload is not JSON")
    await type_sql(page, 'SELECT payload.t as t, clientid FROM "garden/#" WHERE payload.t < 20')
    await expect(events.filter(has_text="garden/bed").first).to_contain_text("no match")
    await expect(events.filter(has_text="garden/cold").first).not_to_contain_text("no match")
    await type_sql(page, 'SELECT payload.t as t, clientid FROM "garden/#" WHERE payload.t > 20')
    await expect(events.filter(has_text="garden/cold").first).to_contain_text("no match")
    # Without SQL, as while it is typed again, the events stay.
    await type_sql(page, "")
    await expect(result(page)).not_to_contain_text("gardener")
    await expect(events.filter(has_text="garden/bed").first).to_be_visible()
    await type_sql(page, 'SELECT payload.t as t, clientid FROM "garden/#" WHERE payload.t > 20')
    use = events.filter(has_text="garden/bed").first.get_by_role("button", name="Use")
    await use.click()
    await expect(result(page)).to_contain_text('"t": 21')
    await expect(result(page)).to_contain_text("gardener")

    # Completion looks into that event.
    editor = page.get_by_role("textbox", name="SQL")
    await type_sql(page, "SELECT payload.")
    await page.keyboard.press("Control+Space")
    await expect(page.locator("[data-editor] li[role=option]").filter(has_text="deep")).to_be_visible()
    await page.keyboard.press("Escape")
    await type_sql(page, 'SELECT payload.t as t, clientid FROM "garden/#" WHERE t > 20')
    await expect(result(page)).to_contain_text('"t": 21')
    await accessible(page)

    # An action by its form, with a resource made on the way.
    await page.get_by_role("button", name="Add action").click()
    form = page.get_by_role("dialog", name="New action")
    await form.get_by_role("button", name="Apply").click()
    await expect(form.get_by_text("This field is required.")).to_be_visible()
    await form.get_by_label("Action").select_option("data_to_webserver")
    await form.get_by_role("button", name="Apply").click()
    await expect(form.get_by_text("This field is required.")).to_be_visible()
    await form.get_by_role("button", name="New resource…").click()
    resource = page.get_by_role("dialog", name="New resource")
    await expect(resource.get_by_label("Type")).to_have_value("web_hook")
    await resource.locator('[data-field="@id"] input').fill("resource:garden")
    await resource.get_by_label("Request URL").fill("nonsense")
    await resource.get_by_role("button", name="Save").click()
    await expect(resource.get_by_text("starts with http")).to_be_visible()
    await resource.get_by_label("Request URL").fill(sink.url)
    await resource.get_by_role("button", name="Test connection").click()
    await expect(resource.get_by_role("status")).to_have_text("Connection successful")
    await accessible(page)
    await resource.get_by_role("button", name="Save").click()
    await expect(form.get_by_label("Resource ID")).to_have_value("resource:garden")
    await form.locator('[data-field="body"] textarea').fill('{"warm": ${json(t)}}')
    await form.get_by_role("button", name="Apply").click()
    await expect(page.get_by_text("resource:garden")).to_be_visible()
    # A fallback of it, with its defaults.
    await page.get_by_role("button", name="Add fallback").first.click()
    await form.get_by_label("Action").select_option("do_nothing")
    await form.get_by_role("button", name="Apply").click()

    # To another page and back: what was typed is there.
    await page.get_by_role("link", name="All rules").click()
    await page.go_back()
    await expect(page.locator(".banner")).to_contain_text("Draft restored")
    await expect(editor).to_contain_text("payload.t as t")
    await page.locator("label:has-text('Id') input").fill("rule:warm")
    await page.locator("label:has-text('Description') input").fill("Warm beds")
    await page.get_by_role("button", name="Create rule").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("rule:warm")
    stored = (await shared_node.api.get("/rules/rule:warm")).data
    assert stored["actions"][0]["params"]["body"] == '{"warm": ${json(t)}}'
    assert stored["actions"][0]["fallbacks"][0]["name"] == "do_nothing"

    # It is hit, and the page sees it live; the last evaluations too.
    async with page.expect_response(lambda answer: answer.request.method == "PUT" and answer.ok):
        await page.get_by_role("button", name="Record the last 20").click()
    await expect(page.get_by_text("No evaluations recorded.")).to_be_visible()
    await gardener.publish("garden/bed", b'{"t": 22}', qos=1)
    async with asyncio.timeout(patience(40)):
        assert await sink.rows.get() == {"warm": 22}
    await expect(page.locator(".flow")).to_contain_text("1 matched")
    await expect(page.locator(".flow")).to_contain_text("1 success")
    trace = page.get_by_role("region", name="Last evaluations")
    await expect(trace).to_contain_text("gardener")
    await gardener.publish("garden/bed", b"no json", qos=1)
    await expect(page.get_by_role("region", name="Last failures")).to_contain_text("no json")
    await accessible(page)

    # The list counts live; off and on; the picture; found by filters that are in the address.
    await page.get_by_role("link", name="All rules").click()
    row = page.get_by_role("row").filter(has_text="rule:warm")
    await expect(row).to_contain_text("Warm beds")
    await gardener.publish("garden/bed", b'{"t": 23}', qos=1)
    await expect(row.get_by_role("cell").nth(3)).to_have_text("2")
    await row_action(row, "Disable")
    await expect(row).to_have_class("faint")
    assert (await shared_node.api.get("/rules/rule:warm")).data["enabled"] is False
    await row_action(row, "Enable")
    await expect(row).not_to_have_class("faint")
    await page.get_by_placeholder("Matches filter…").fill("nothing/here")
    await expect(page.get_by_text("No rules found.")).to_be_visible()
    await page.get_by_placeholder("Matches filter…").fill("garden/#")
    await expect(row).to_be_visible()
    await page.get_by_role("button", name="Diagram").click()
    await expect(page.get_by_role("group", name="Diagram of rule rule:warm")).to_contain_text("resource:garden")
    assert "match=garden" in page.url and "view=picture" in page.url
    await accessible(page)
    await page.reload()
    await expect(page.locator(".flow")).to_contain_text("resource:garden")

    # Changed; a PUT that is refused keeps what was typed.
    await page.get_by_role("link", name="rule:warm").click()
    await page.keyboard.press("e")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Edit rule:warm")
    await type_sql(page, "SELECT FROM")
    await page.get_by_role("button", name="Save rule").click()
    await expect(page.locator(".panel.bad").first).to_contain_text("not saved")
    await type_sql(page, 'SELECT payload.t as t FROM "garden/+"')
    await page.get_by_role("button", name="Save rule").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("rule:warm")
    changed = (await shared_node.api.get("/rules/rule:warm")).data
    assert changed["for"] == ["garden/+"]
    assert [one["id"] for one in changed["actions"]] == [one["id"] for one in stored["actions"]]

    # Deleted, by its name.
    await page.get_by_role("button", name="Delete").click()
    ask = page.get_by_role("dialog")
    await expect(ask).to_contain_text("rule:warm")
    await ask.get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Rules")
    assert (await shared_node.api.get("/rules/rule:warm")).status == 404
    assert (await shared_node.api.delete("/resources/resource:garden")).code == 0
    await gardener.close()


async def test_resources_have_names(open_page: OpenPage, shared_node: DashboardNode) -> None:
    config = {"url": "http://127.0.0.1:1/x"}
    for name, description in (("resource:6157550f", "Our ERP"), ("resource:plain", ""), ("resource:odd", HOSTILE)):
        body = {"id": name, "type": "web_hook", "config": config, "description": description}
        assert (await shared_node.api.post("/resources", body)).code == 0
    page = await open_page("/rules/resources")
    row = page.get_by_role("row").filter(has_text="resource:6157550f")
    await expect(row.get_by_role("link", name="Our ERP")).to_be_visible()
    await expect(page.get_by_role("link", name="resource:plain")).to_be_visible()
    await expect(page.get_by_role("row").filter(has_text="resource:odd")).to_contain_text("<img src=x")
    await accessible(page)
    await row.get_by_role("link", name="Our ERP").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("resource:6157550f")
    for name in ("resource:6157550f", "resource:plain", "resource:odd"):
        assert (await shared_node.api.delete(f"/resources/{name}")).code == 0


PERSON = 'syntax = "proto3"; message Person { string name = 1; int32 age = 2; }'


async def test_a_schema_is_created_decodes_and_is_deleted(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/rules/schemas")
    await page.get_by_role("button", name="New schema").click()
    dialog = page.get_by_role("dialog")
    await fill_in(dialog, name=HOSTILE, parser_type="protobuf", descr="People")
    await dialog.get_by_role("textbox", name="Schema text").click()
    await page.keyboard.insert_text(PERSON)
    await submit(dialog)
    line = row(page, "People")
    await expect(line).to_contain_text("Protobuf")
    await accessible(page)
    await row_action(line, "Decode")
    await fill_in(dialog, written="hex", payload="0a 03 41 6e 6e 10 07", message="Person")
    await submit(dialog)
    await expect(dialog.locator("[data-result]")).to_contain_text('"name": "Ann"')
    await expect(dialog.locator("[data-result]")).to_contain_text('"age": 7')
    await accessible(page)
    await fill_in(dialog, payload="ff")
    await submit(dialog)
    await expect(dialog.get_by_role("alert").first).to_be_visible()
    await dialog.get_by_role("button", name="Close").click()
    await row_action(line, "Edit")
    await fill_in(dialog, descr="All people")
    await submit(dialog)
    line = row(page, "All people")
    await row_action(line, "Delete")
    await confirmed(page, "Delete", "<img src=x")
    await expect(page.get_by_text("No schemas yet.")).to_be_visible()
    assert (await shared_node.api.get("/schemas")).data == []


async def fill_required(field: Locator, example: Any) -> None:
    """Enter the example of a parameter that has no default: a text, or a map."""
    if isinstance(example, str):
        await field.locator("input, textarea").fill(example)
        return
    for name, value in example.items():
        await field.get_by_role("button").last.click()
        await field.locator("input").nth(-2).fill(name)
        await field.locator("input").last.fill(value)


async def test_every_form_of_the_catalogue(open_page: OpenPage, shared_node: DashboardNode) -> None:
    """Each type of resource and each action: with what the form proposes, and as it is given back by a change."""
    page = await open_page("/rules/resources?new=1")
    dialog = page.get_by_role("dialog")
    types = {one["name"]: one for one in (await shared_node.api.get("/resource_types")).data}
    made = []
    for name, about in types.items():
        if not await dialog.is_visible():
            await page.keyboard.press("n")
        await dialog.get_by_label("Type").select_option(name)
        await dialog.locator('[data-field="@id"] input').fill(f"resource:{name}")
        for key, param in about["params"].items():
            if param.get("required") and "default" not in param:
                await dialog.locator(f'[data-field="{key}"] input').fill("http://127.0.0.1:1/x")
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog).to_be_hidden()
        made.append(f"resource:{name}")
        stored = (await shared_node.api.get(f"/resources/resource:{name}")).data["config"]
        for key, param in about["params"].items():
            if "default" in param:
                masked = param["type"] == "password" and param["default"]
                assert stored[key] == (MASK if masked else param["default"]), (name, key)
    await expect(page.get_by_role("row")).to_have_count(len(made) + 1)

    # Everything filled in, a file too; then changed, with its secrets as they were.
    await page.keyboard.press("n")
    await dialog.get_by_label("Type").select_option("bridge_mqtt")
    await dialog.locator('[data-field="@id"] input').fill("resource:full")
    await dialog.locator('[data-field="@description"] input').fill(HOSTILE)
    await dialog.get_by_text("More settings").click()
    more: dict[str, str] = {
        "address": "127.0.0.1:1", "pool_size": "2", "clientid": "bridge", "username": "me", "password": "open sesame",
        "mountpoint": "to/", "keepalive": "30s", "reconnect_interval": "5s", "retry_interval": "7s",
    }  # fmt: skip
    for key, value in more.items():
        await dialog.locator(f'[data-field="{key}"] input').fill(value)
    for key in ("append", "bridge_mode"):
        await dialog.locator(f'[data-field="{key}"] input').click()
    await dialog.locator('[data-field="proto_ver"] select').select_option("mqttv3")
    await dialog.locator('[data-field="disk_cache"] select').select_option("off")
    await dialog.locator('[data-field="cacertfile"] input[type="file"]').set_input_files(
        {"name": "ca.pem", "mimeType": "text/plain", "buffer": b"no certificate"}
    )
    await expect(dialog.locator('[data-field="cacertfile"] input').first).to_have_value("ca.pem")
    await dialog.get_by_role("button", name="No file").click()
    await dialog.locator('[data-field="ingress"] textarea').fill("[{")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_text("Invalid JSON")).to_be_visible()
    await dialog.locator('[data-field="ingress"] textarea').fill('[{"remote_topic": "from/#", "local_topic": "in/"}]')
    await dialog.locator('[data-field="pool_size"] input').fill("100000")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_text("Enter 64 or less.")).to_be_visible()
    await dialog.locator('[data-field="pool_size"] input').fill("2")
    await dialog.locator('[data-field="ingress"] textarea').fill("[]")
    await dialog.get_by_role("button", name="Test connection").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("POST /resources: HTTP 400")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_be_hidden()
    config = (await shared_node.api.get("/resources/resource:full")).data["config"]
    for key, value in more.items():
        expected: object = int(value) if key == "pool_size" else "******" if key == "password" else value
        assert config[key] == expected, key
    assert (config["append"], config["bridge_mode"], config["proto_ver"], config["disk_cache"]) == (
        False, True, "mqttv3", "off",
    )  # fmt: skip
    row = page.get_by_role("row").filter(has_text="resource:full")
    await expect(row).to_contain_text(HIDDEN)
    await expect(row).to_contain_text("disconnected")
    assert (await shared_node.api.delete("/resources/resource:full")).code == 0

    # Actions, each with its defaults.
    page = await open_page("/rules/new?sql=SELECT%20*%20FROM%20%22t%2F%23%22")
    form = page.get_by_role("dialog", name="New action")
    actions = (await shared_node.api.get("/actions")).data
    for action in actions:
        await page.get_by_role("button", name="Add action").click()
        await form.get_by_label("Action").select_option(action["name"])
        if "$resource" in action["params"]:
            await form.get_by_label("Resource ID").select_option(f"resource:{action['types'][0]}")
        for key, param in action["params"].items():
            if param.get("required") and "default" not in param and key != "$resource":
                await fill_required(form.locator(f'[data-field="{key}"]'), REQUIRED[key])
        await form.get_by_role("button", name="Apply").click()
        await expect(form).to_be_hidden()
    await page.get_by_role("button", name="Create rule").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("rule:")
    rules = (await shared_node.api.get("/rules")).data
    rule = next(one for one in rules if len(one["actions"]) == len(actions))
    for action, stored in zip(actions, rule["actions"], strict=True):
        assert stored["name"] == action["name"]
        for key, param in action["params"].items():
            if "default" in param:
                assert stored["params"][key] == param["default"], (action["name"], key)

    # A resource in use stays, and the dialog says for whom.
    page = await open_page("/rules/resources/resource:web_hook")
    await expect(page.get_by_role("link", name=rule["id"])).to_be_visible()
    await page.get_by_role("button", name="Delete", exact=True).click()
    ask = page.get_by_role("dialog")
    await ask.get_by_role("button", name="Delete").click()
    await expect(ask.get_by_role("alert")).to_contain_text(rule["id"])
    await ask.get_by_role("button", name="Cancel").click()
    await shared_node.api.delete(f"/rules/{rule['id']}")
    await page.get_by_role("button", name="Delete", exact=True).click()
    await ask.get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Rules")
    for resource in made[1:] if made[0] == "resource:web_hook" else made:
        await shared_node.api.delete(f"/resources/{resource}")


async def test_what_waits_and_what_was_set_aside(open_page: OpenPage, shared_node: DashboardNode, sink: Sink) -> None:
    node = shared_node
    config = {"url": sink.url, "retry_attempts": 1}
    assert (await node.api.post("/resources", {"id": "resource:hook", "type": "web_hook", "config": config})).code == 0
    action = {"name": "data_to_webserver", "params": {"$resource": "resource:hook"}}
    await make_rule(node, "rule:all", 'SELECT payload FROM "w/#"', [action])
    sink.status = 500
    client = await node.client("writer")
    await client.publish("w/1", HOSTILE.encode(), qos=1)
    page = await open_page("/rules/resources/resource:hook")
    letters = page.get_by_role("region", name="Dead letters")
    await expect(letters).to_contain_text(HIDDEN)
    await expect(letters).to_contain_text("writer")
    await expect(page.get_by_role("link", name="rule:all")).to_be_visible()
    await accessible(page)
    sink.status = 200
    await letters.get_by_role("button", name="Send again").click()
    async with asyncio.timeout(patience(40)):
        assert await sink.rows.get() == {"payload": HOSTILE}
    await expect(letters).to_contain_text("No dead letters.")

    sink.status = 500
    await client.publish("w/2", b"two", qos=1)
    await client.publish("w/3", b"three", qos=1)
    rows = letters.locator("tbody tr")
    await expect(rows).to_have_count(2)
    await letters.get_by_role("button", name="Delete").first.click()
    ask = page.get_by_role("dialog")
    await ask.get_by_role("button", name="Delete").click()
    await expect(rows).to_have_count(1)
    await page.get_by_role("button", name="Delete all").click()
    await ask.get_by_role("button", name="Delete").click()
    await expect(letters).to_contain_text("No dead letters.")

    # A change is tried before it is taken, and refused while the rule is on.
    await page.keyboard.press("e")
    dialog = page.get_by_role("dialog")
    await dialog.locator('[data-field="@description"] input').fill("The hook")
    await dialog.locator('[data-field="pool_size"] input').fill("3")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("rule:all")
    assert (await node.api.put("/rules/rule:all", {"enabled": False})).code == 0
    sink.status = 200
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_be_hidden()
    assert (await node.api.get("/resources/resource:hook")).data["config"]["pool_size"] == 3
    await page.get_by_role("button", name="Reconnect").click()
    await expect(page.locator(".toast.good").last).to_contain_text("Resource connected")
    assert (await node.api.delete("/rules/rule:all")).code == 0
    assert (await node.api.delete("/resources/resource:hook")).code == 0
    await client.close()


async def test_names_of_strangers_a_viewer_and_links_into_the_page(
    open_page: OpenPage, shared_node: DashboardNode
) -> None:
    node = shared_node
    await make_rule(node, HOSTILE, 'SELECT * FROM "s/#"', [{"name": "do_nothing", "params": {}}], description=HOSTILE)
    client = await node.client("stranger<b>")
    page = await open_page("/rules", role="viewer")
    row = page.get_by_role("row").filter(has_text=HIDDEN)
    await expect(row).to_be_visible()
    await expect(await row_action(row, "Delete…")).to_be_disabled()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="New rule")).to_be_disabled()
    await row.get_by_role("link").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(HIDDEN)
    for name in ("Edit", "Disable", "Reset metrics", "Delete", "Record the last 20"):
        await expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    await client.publish("s/1", b"<i>x", qos=1)
    await expect(page.locator(".flow")).to_contain_text("1 matched")
    address = page.url
    await page.reload()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(HIDDEN)
    assert page.url == address
    assert await page.evaluate("() => document.querySelectorAll('main img, main b:not(.legend b), main i').length") == 0
    await accessible(page, (390,))

    # The editor shows a viewer all, and says who may save. Nothing is sent that would be refused.
    await page.goto(f"{address}/edit")
    await expect(page.get_by_role("button", name="Save rule")).to_be_disabled()
    await expect(result(page)).to_contain_text("Only administrators can do this")
    await page.goto(f"{node.url}/#/rules/rule/no-such-rule")
    await expect(page.get_by_role("alert")).to_contain_text("no-such-rule")
    await page.goto(f"{node.url}/#/rules/resources/no-such-resource")
    await expect(page.get_by_role("alert")).to_contain_text("no-such-resource")
    await page.go_back()
    await expect(page.get_by_role("heading", level=1)).to_have_text("no-such-rule")
    await client.close()
    assert (await node.api.delete(f"/rules/{quote(HOSTILE, safe='')}")).code == 0


async def test_a_rule_that_goes_and_a_node_that_leaves(
    own_node: DashboardNode, open_dashboard: Callable[[DashboardNode], Dashboard]
) -> None:
    dashboard = open_dashboard(own_node)
    await make_rule(own_node, "rule:kept", 'SELECT * FROM "k/#"', [{"name": "do_nothing", "params": {}}])
    await make_rule(own_node, "rule:gone", 'SELECT * FROM "g/#"', [])
    page = await dashboard.open("/rules")
    await expect(page.get_by_role("link", name="rule:gone")).to_be_visible()
    assert (await own_node.api.delete("/rules/rule:gone")).code == 0
    await expect(page.get_by_role("link", name="rule:gone")).to_have_count(0)
    await page.goto(f"{own_node.url}/#/rules/rule/rule:kept/edit")
    await type_sql(page, 'SELECT clientid FROM "k/#"')
    dashboard.watch.node_may_be_away = True
    await own_node.stop_process()
    await page.get_by_role("button", name="Save rule").click()
    await expect(page.get_by_role("alert").first).to_contain_text("is not responding")
    await own_node.start()
    # Sessions are in memory; the page goes on where it was. The dialog comes with whatever it asks first, by itself or
    # by this click.
    dialog = page.get_by_role("dialog", name="Log in again")
    save = page.get_by_role("button", name="Save rule")
    try:
        await save.click(timeout=5000)
        asked = True
    except PlaywrightTimeout:
        asked = False
    await dialog.get_by_label("Password").fill(own_node.password)
    await page.keyboard.press("Enter")
    await expect(dialog).to_have_count(0)
    if not asked:
        await save.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("rule:kept")
    assert (await own_node.api.get("/rules/rule:kept")).data["rawsql"] == 'SELECT clientid FROM "k/#"'
