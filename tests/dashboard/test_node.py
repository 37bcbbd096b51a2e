"""Node: nodes, listeners and certificates, the effective configuration, modules, export and import."""

import asyncio
import base64
import hashlib
import json
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import DashboardNode, accessible
from tests.support.certificates import Certificates
from tests.support.forms import HOSTILE, SHOWN, confirmed, control, fault, row, send, submit
from tests.support.node import free_port

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
SETTINGS = """
[[listeners]]
name = "tls"
type = "ssl"
bind = "127.0.0.1:{port}"
[listeners.tls]
certfile = "{certfile}"
keyfile = "{keyfile}"
"""


@pytest.fixture(scope="module")
def make_node(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], DashboardNode]:
    def make() -> DashboardNode:
        directory = tmp_path_factory.mktemp("node")
        certfile, keyfile = Certificates(directory).issue("localhost", days=10)
        more = SETTINGS.format(port=free_port(), certfile=certfile, keyfile=keyfile)
        return DashboardNode(directory, more, {"TAIPAN__RETAINED__MAX_MESSAGES": "5000"})

    return make


def listens(node: DashboardNode, name: str) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", node.ports[name])) == 0


async def test_nodes_and_listeners(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/node")
    await expect(row(page, shared_node.name)).to_contain_text("Running")
    # In the units of all other pages.
    await expect(row(page, shared_node.name)).to_contain_text(re.compile(r"[\d.]+ MiB"))
    await expect(row(page, shared_node.name)).to_contain_text(re.compile(r"\d+ (s|min)"))
    await expect(row(page, shared_node.name)).not_to_contain_text("second")
    await accessible(page)
    peer = await shared_node.client("stays")
    await page.get_by_role("link", name="Listeners").click()
    tcp = row(page, "mqtt:tcp:tcp")
    await expect(tcp).to_contain_text("listening")
    await expect(row(page, "listeners.")).to_contain_text("expires soon")
    await expect(row(page, "http:dashboard").get_by_role("button")).to_have_count(0)
    await accessible(page)
    await tcp.get_by_role("button", name="Stop").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert listens(shared_node, "tcp")
    await tcp.get_by_role("button", name="Stop").click()
    await confirmed(page, "Stop", "mqtt:tcp:tcp")
    await expect(tcp).to_contain_text("stopped")
    assert not listens(shared_node, "tcp")
    await peer.ping()
    await page.reload()
    await expect(tcp).to_contain_text("stopped")
    await accessible(page, (390,))
    await tcp.get_by_role("button", name="Start").click()
    await expect(tcp).to_contain_text("listening")
    await shared_node.client("comes")
    await tcp.get_by_role("button", name="Restart").click()
    await confirmed(page, "Restart", "mqtt:tcp:tcp")
    await expect(page.get_by_text("Listener restarted")).to_be_visible()
    await peer.ping()
    await shared_node.client("comes-too")


async def test_the_effective_configuration(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/node/configuration?search=max_messages", role="viewer")
    setting = row(page, "retained.max_messages")
    await expect(setting).to_contain_text("5000")
    await expect(setting).to_contain_text("environment")
    await page.locator("details.columns summary").click()
    await page.get_by_label("Location", exact=True).check()
    await page.locator("details.columns summary").click()
    await expect(setting).to_contain_text("TAIPAN__RETAINED__MAX_MESSAGES")
    await page.get_by_role("searchbox").fill("")
    await page.get_by_role("combobox", name="Source").select_option("changed")
    await expect(row(page, "node.name")).to_contain_text("taipan.toml:3")
    await expect(row(page, "default").filter(has_text="limits.")).to_have_count(0)
    await accessible(page)
    await page.get_by_role("searchbox").fill("listeners.0")
    await expect(row(page, "node.name")).to_have_count(0)
    await page.get_by_role("searchbox").fill("")
    await expect(row(page, "node.name")).to_be_visible()
    await page.get_by_role("combobox", name="Source").select_option("environment")
    await expect(row(page, "node.name")).to_have_count(0)
    await page.go_back()
    await expect(row(page, "node.name")).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("combobox", name="Source")).to_have_value("changed")
    await page.get_by_role("searchbox").fill("no such setting")
    await expect(page.get_by_text("No matching settings.")).to_be_visible()


async def test_modules(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/node/modules")
    slow = row(page, "emqx_mod_slow_subs")
    await expect(slow).to_contain_text("disabled")
    assert (await shared_node.api.get("/slow_subscriptions")).code == 102
    await slow.get_by_role("button", name="Enable").click()
    await expect(slow.get_by_role("button", name="Disable")).to_be_visible()
    assert (await shared_node.api.get("/slow_subscriptions")).code == 0
    await accessible(page)
    await slow.get_by_role("button", name="Disable").click()
    await confirmed(page, "Disable", "emqx_mod_slow_subs")
    await expect(slow.get_by_role("button", name="Enable")).to_be_visible()
    assert (await shared_node.api.get("/slow_subscriptions")).code == 102


async def test_export_dry_run_and_import(open_page: OpenPage, shared_node: DashboardNode, tmp_path: Path) -> None:
    api = shared_node.api
    user = {"login": HOSTILE, "password": "a-secret-of-mine", "is_superuser": False}
    assert (await api.post("/auth_user", user)).code == 0
    assert (await api.post("/banned", {"who": "kept", "as": "clientid", "until": 4_000_000_000})).code == 0
    page = await open_page("/node/transfer")
    await expect(page.get_by_text("No files yet.")).to_be_visible()
    await page.get_by_role("button", name="Export now").click()
    exported = row(page, "broker-export-")
    await expect(exported).to_be_visible()
    async with page.expect_download() as download:
        await exported.get_by_role("button", name="Download").click()
    saved = tmp_path / "exported.json"
    await (await download.value).save_as(saved)
    content = json.loads(saved.read_text())
    assert [one["who"] for one in content["blacklist"]] == [{"clientid": "kept"}]
    # Nothing would change; then what is gone would be made again.
    await exported.get_by_role("link", name="Preview").click()
    await expect(page.get_by_text("All records already exist")).to_be_visible()
    await expect(page.get_by_role("button", name="Import")).to_be_disabled()
    await page.get_by_label("Show unchanged records").check()
    await expect(row(page, SHOWN)).to_contain_text("unchanged")
    assert (await api.delete("/banned/clientid/kept")).code == 0
    await page.reload()
    await expect(page.get_by_label("Show unchanged records")).to_be_checked()
    await expect(row(page, "kept")).to_contain_text("created")
    await accessible(page)
    await page.get_by_role("button", name="Import").click()
    await confirmed(page, "Import", "1 records will be created or changed")
    await expect(page.get_by_role("button", name="Export now")).to_be_visible()
    assert [one["who"] for one in (await api.get("/banned")).data] == ["kept"]
    await page.go_back()
    await expect(row(page, "kept")).to_contain_text("unchanged")
    await page.go_forward()
    # Uploads: nothing, no export, one with a wrong record, one of another node.
    await submit(page)
    await expect(fault(page, "file")).to_have_text("This field is required.")
    chooser = page.locator("input[type=file]")
    await chooser.set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": b"not JSON"})
    await submit(page)
    await expect(page.locator("form").get_by_role("alert")).to_be_visible()
    content["blacklist"][0]["who"] = {HOSTILE: "x"}
    wrong = json.dumps(content).encode()
    await chooser.set_input_files({"name": "y.json", "mimeType": "application/json", "buffer": wrong})
    await submit(page)
    await expect(page.get_by_text("Preview it before you import it")).to_be_visible()
    await expect(page.locator("tbody tr")).to_have_count(2)
    await accessible(page, (390,))
    await page.get_by_role("link", name="Preview").last.click()
    await expect(page.get_by_role("alert")).to_contain_text("The file cannot be imported. Nothing was changed.")
    await expect(row(page, "blacklist")).to_be_visible()
    await accessible(page, (390,))
    await page.get_by_role("link", name="All files").click()
    await page.locator("tbody tr").last.get_by_role("button", name="Delete").click()
    await confirmed(page, "Delete", "broker-")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.goto(f"{shared_node.url}/#/node/transfer/none.json")
    await expect(page.get_by_role("alert")).to_be_visible()


async def test_an_import_says_whose_login_it_replaces(open_page: OpenPage, shared_node: DashboardNode) -> None:
    api = shared_node.api
    assert (await api.post("/users", {"username": "eve", "password": "before-1", "role": "viewer"})).code == 0
    page = await open_page("/node/transfer")
    me = (
        await page.evaluate("fetch('/api/v4/auth', {headers: {'X-Taipan-Dashboard': '1'}}).then((one) => one.json())")
    )["data"]
    stored = base64.b64encode(b"salt" + hashlib.md5(b"saltof-the-file-1").digest()).decode()
    users = [{"username": name, "password": stored, "tags": "administrator"} for name in (me["username"], "eve")]
    file = {"version": "4.4", "users": users, "apps": [{"id": "admin", "secret": "public"}], "schemas": [{"id": "s1"}]}
    name = (await api.post("/data/file", {"file": json.dumps(file)})).data["filename"]
    await page.goto(f"{shared_node.url}/#/node/transfer/{name}")
    await expect(page.get_by_text("its secret is EMQX's published default")).to_be_visible()
    await expect(page.get_by_text("it is the login that runs this import")).to_be_visible()
    await expect(page.get_by_text("kept only for the next export").first).to_be_visible()
    await accessible(page, (390,))
    own = page.get_by_label("Also replace my own user")
    await own.check()
    await expect(page.get_by_text("it is the login that runs this import")).to_have_count(0)
    await page.get_by_role("button", name="Import").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text(f"Your own user {me['username']} is one of them")
    await dialog.get_by_role("button", name="Cancel").click()
    await own.uncheck()
    await page.get_by_role("button", name="Import").click()
    await expect(dialog).to_contain_text("The file replaces the password and role of 1 dashboard users")
    await expect(dialog).not_to_contain_text("Your own user")
    await dialog.get_by_role("button", name="Import").click()
    await expect(page.get_by_role("button", name="Export now")).to_be_visible()
    assert [one["role"] for one in (await api.get("/users")).data if one["username"] == "eve"] == ["administrator"]
    assert (await api.delete("/users/eve")).code == 0


async def test_viewers_look_and_change_nothing(open_page: OpenPage, shared_node: DashboardNode) -> None:
    assert (await shared_node.api.post("/data/export", {})).code == 0
    page = await open_page("/node/listeners", role="viewer")
    for name in ("Stop", "Restart"):
        await expect(row(page, "mqtt:tcp:tcp").get_by_role("button", name=name)).to_be_disabled()
    await page.get_by_role("link", name="Modules").click()
    await expect(page.get_by_role("button", name=re.compile("^(Enable|Disable)$")).first).to_be_disabled()
    await page.get_by_role("link", name="Export and import").click()
    for name in ("Export now", "Download", "Delete", "Upload a file"):
        await expect(page.get_by_role("button", name=name).first).to_be_disabled()
    await accessible(page, (390,))


async def test_log(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/node/log")
    log = page.get_by_role("log")
    wrong = await shared_node.api.ask("GET", "/brokers", headers={"Authorization": "Basic bm9ib2R5OndyMG5n"})
    assert wrong.status == 401
    await expect(log).to_contain_text("dashboard_login_refused")
    await expect(log).not_to_contain_text("wr0ng")
    await accessible(page)
    await page.get_by_label("Line contains").fill("no such line")
    await expect(page.get_by_text("No matching lines.")).to_be_visible()
    await page.get_by_label("Line contains").fill("dashboard_login")
    await page.get_by_role("combobox", name="Level").select_option("error")
    await expect(page.get_by_text("No matching lines.")).to_be_visible()
    await page.get_by_role("combobox", name="Level").select_option("warning")
    await expect(log).to_contain_text("dashboard_login_refused")
    viewer = await open_page("/node/log", role="viewer")
    await expect(viewer.get_by_text("Only administrators can see the log.")).to_be_visible()


async def test_connect_a_client(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/node/connect", role="viewer")
    port = shared_node.ports["tcp"]
    code = page.locator("pre.log")
    await expect(code).to_contain_text(f"mosquitto_sub -h 127.0.0.1 -p {port} -t 'test/#' -v")
    await expect(page.get_by_text("Only clients on the machine of the node")).to_be_visible()
    await accessible(page)
    await page.get_by_role("combobox", name="Program").select_option("python")
    await page.get_by_label("Username").fill("ann'; drop")
    await expect(code).to_contain_text('client.username_pw_set("ann\'; drop", "PASSWORD")')
    for name, text in (
        ("javascript", f'"mqtt://127.0.0.1:{port}"'),
        ("arduino", f'client.setServer("127.0.0.1", {port})'),
    ):
        await page.get_by_role("combobox", name="Program").select_option(name)
        await expect(code).to_contain_text(text)
    await page.get_by_role("combobox", name="Listener").select_option("mqtt:ws:ws")
    await page.get_by_role("combobox", name="Program").select_option("javascript")
    await expect(code).to_contain_text(f'"ws://127.0.0.1:{shared_node.ports["ws"]}/mqtt"')
    # What the page shows connects.
    await page.goto(f"{shared_node.url}/#/node/connect?language=python")
    program = await code.inner_text()
    subscriber = await shared_node.client("watches")
    await subscriber.subscribe("test/#")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    try:
        assert (await subscriber.expect_publish()).payload == b"Hello"
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
async def test_a_setting_is_changed_in_the_file(open_page: OpenPage, shared_node: DashboardNode, locale: str) -> None:
    before = shared_node.config.read_text("utf-8")
    english = locale == "en-US"
    page = await open_page("/node/configuration?search=log.level", locale=locale)
    await expect(page.locator("main")).to_contain_text(str(shared_node.config))
    await page.get_by_role("button", name="Change log.level" if english else "修改 log.level").click()
    dialog = page.get_by_role("dialog")
    await expect(control(dialog, "value")).to_have_value("warning")
    await accessible(page, (1440, 1024, 390))
    # What the node would not read is refused at the field.
    await send(dialog, value="loud\u202e")
    await expect(dialog).to_contain_text("log.level: expected")
    assert shared_node.config.read_text("utf-8") == before
    await send(dialog, value="error")
    difference = dialog.locator("pre.diff")
    await expect(difference).to_contain_text('-level = "warning"\n+level = "error"')
    await accessible(page, (1440, 1024, 390))
    await dialog.get_by_role("button", name="Back" if english else "返回").click()
    await expect(control(dialog, "value")).to_have_value("error")
    await submit(dialog)
    await expect(difference).to_contain_text('+level = "error"')
    # Somebody else has changed the file: this difference is not saved, and a new one is shown.
    shared_node.config.write_text(before.replace("hash_cost = 10", "hash_cost = 11  # <b>new</b>"), "utf-8")
    save = dialog.get_by_role("button", name="Save and apply" if english else "保存并应用")
    await save.click()
    await expect(dialog.get_by_role("alert")).to_contain_text("changed in the meantime")
    await accessible(page, (1440, 390))
    await dialog.get_by_role("alert").get_by_role("button").click()
    await expect(dialog).to_contain_text("access.hash_cost: 10 → 11")
    await save.click()
    await expect(dialog).to_have_count(0)
    await expect(row(page, "log.level")).to_contain_text('"error"')
    after = shared_node.config.read_text("utf-8")
    assert after == before.replace('"warning"', '"error"').replace("hash_cost = 10", "hash_cost = 11  # <b>new</b>")
    await page.get_by_role("button", name="Change log.level" if english else "修改 log.level").click()
    await control(dialog, "delete").check()
    await expect(control(dialog, "value")).to_have_count(0)
    await submit(dialog)
    await expect(difference).to_contain_text('-level = "error"')
    await save.click()
    await expect(row(page, "log.level")).to_contain_text('"info"')
    shared_node.config.write_text(before, "utf-8")
    shared_node.process.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
    while (await shared_node.api.get("/configuration", key="log.level")).data[0]["value"] != "warning":
        pass


async def test_which_settings_cannot_be_changed_says_why(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/node/configuration?search=max_messages")
    change = page.get_by_role("button", name="Change retained.max_messages")
    await expect(change).to_be_disabled()
    await expect(change).to_have_attribute("title", "TAIPAN__RETAINED__MAX_MESSAGES takes precedence over the file.")
    await page.get_by_role("searchbox").fill("node.name")
    await expect(row(page, "node.name").get_by_role("button", name="Change node.name")).to_have_count(0)
    await accessible(page, (1440, 1024, 390))
    viewer = await open_page("/node/configuration?search=log.level", role="viewer")
    await expect(viewer.get_by_role("button", name="Change log.level")).to_be_disabled()
    await expect(viewer.get_by_role("button", name="Change log.level")).to_have_attribute(
        "title", "Only administrators can do this."
    )
