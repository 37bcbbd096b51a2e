"""Access: users, rules, bans, applications, dashboard users, and a login that is only tried."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from taipan.broker.access.scram import ScramVerifier
from tests.support.api import ApiClient
from tests.support.browser import PASSWORD, Dashboard, DashboardNode, accessible
from tests.support.certificates import Certificates
from tests.support.forms import HOSTILE, SHOWN, confirmed, control, fault, fill_in, row, send, submit
from tests.support.node import free_port

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]
LONG = "u" * 65_000
SECRET = "a-secret-of-mine"
TABS = {
    "users": "New user", "rules": "New rule", "bans": "New ban", "apps": "New application",
    "admins": "New dashboard user",
}  # fmt: skip


async def test_users(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/access")
    await expect(page.get_by_text("No users found.")).to_be_visible()
    await page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    await submit(dialog)
    await expect(fault(dialog, "name")).to_have_text("This field is required.")
    await expect(fault(dialog, "password")).to_have_text("This field is required.")
    await accessible(page)
    await send(dialog, name=HOSTILE, password=SECRET)
    await expect(dialog).to_have_count(0)
    await expect(row(page, SHOWN)).to_be_visible()
    await shared_node.client("by-hand", username=HOSTILE, password=SECRET.encode())
    await shared_node.client("wrong", username=HOSTILE, password=b"guessed", expect=0x86)
    # The same once more; then with all that can be given, and a password that the node makes.
    await page.get_by_role("button", name="New user").click()
    await send(dialog, name=HOSTILE, password=SECRET)
    await expect(dialog.get_by_role("alert")).to_contain_text("already exists")
    await send(dialog, name="device", generate=True, is_superuser=True)
    shown = page.get_by_role("dialog", name="Password, shown only once")
    secret = await shown.locator("code").inner_text()
    await accessible(page)
    await shown.get_by_role("button", name="Done").click()
    await shared_node.client("made", username="device", password=secret.encode())
    assert (await shared_node.api.get("/auth_user/device")).data["is_superuser"] is True
    # Another password counts; what was set stays in the form.
    await row(page, "device").get_by_role("button", name="Edit").click()
    await expect(control(dialog, "is_superuser")).to_be_checked()
    await send(dialog, password="another-secret", is_superuser=False)
    await expect(dialog).to_have_count(0)
    await shared_node.client("changed", username="device", password=b"another-secret")
    assert (await shared_node.api.get("/auth_user/device")).data["is_superuser"] is False
    await page.get_by_role("searchbox").fill("devi")
    await expect(row(page, SHOWN)).to_have_count(0)
    await page.reload()
    await expect(page.get_by_role("searchbox")).to_have_value("devi")
    # The longest names have their place too.
    await page.get_by_role("searchbox").fill("")
    await page.get_by_role("button", name="New user").click()
    await send(dialog, name=LONG, password=SECRET)
    await expect(row(page, "… 65,000")).to_be_visible()
    await accessible(page)
    await row(page, "… 65,000").get_by_role("button", name="Delete").click()
    await confirmed(page, "Delete", "… 65,000")
    await expect(row(page, "… 65,000")).to_have_count(0)
    await page.get_by_role("searchbox").fill("devi")
    # Who is removed is disconnected, and does not come in again.
    peer = await shared_node.client("to-go", username="device", password=b"another-secret")
    await row(page, "device").get_by_role("button", name="Delete").click()
    await confirmed(page, "Delete", "device")
    await expect(page.get_by_text("No users found.")).to_be_visible()
    await peer.expect_disconnect(0x87)
    await shared_node.client("gone", username="device", password=b"another-secret", expect=0x86)
    # By client id; the kind is in the address.
    await page.get_by_role("searchbox").fill("")
    await expect(page).to_have_url(f"{shared_node.url}/#/access")
    await page.get_by_label("Users by").select_option("clientid")
    assert "kind=clientid" in page.url
    await page.get_by_role("button", name="New user").click()
    await send(dialog, name="sensor-1", password=SECRET)
    await expect(row(page, "sensor-1")).to_be_visible()
    await shared_node.client("sensor-1", username="sensor-1", password=SECRET.encode())
    await page.go_back()
    await expect(row(page, SHOWN)).to_be_visible()
    await row(page, SHOWN).get_by_role("button", name="Delete").click()
    await confirmed(page, "Delete", SHOWN)
    await expect(page.get_by_text("No users found.")).to_be_visible()


async def test_rules(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/access/rules")
    await expect(page.get_by_text("No rules found.")).to_be_visible()
    peer = await shared_node.client("ruled")
    await peer.publish("diary/today", b"1", qos=1)
    await page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    await submit(dialog)
    await expect(fault(dialog, "name")).to_have_text("This field is required.")
    await send(dialog, name="x", topic="diary/#/no")
    await expect(fault(dialog, "topic")).to_contain_text("#")
    await fill_in(dialog, kind="all")
    await expect(control(dialog, "name")).to_have_count(0)
    await fill_in(dialog, kind="clientid")
    await send(dialog, name="ruled", topic="diary/#", action="pub", access="deny")
    await expect(dialog).to_have_count(0)
    await page.get_by_label("Rules for").select_option("clientid")
    await expect(row(page, "ruled")).to_contain_text("deny")
    assert await peer.publish("diary/today", b"2", qos=1, expect=None) == 0x87
    await page.get_by_role("button", name="New rule").click()
    await send(dialog, name=HOSTILE, topic=HOSTILE)
    await expect(row(page, SHOWN).get_by_role("cell", name="publish", exact=True)).to_be_visible()
    await expect(row(page, SHOWN).get_by_role("cell", name="subscribe", exact=True)).to_be_visible()
    await accessible(page)
    await page.get_by_label("Topic contains…").fill("diary")
    await expect(row(page, SHOWN)).to_have_count(0)
    await page.reload()
    await expect(page.get_by_label("Topic contains…")).to_have_value("diary")
    await row(page, "ruled").get_by_role("button", name="Delete").click()
    await confirmed(page, "Delete", "ruled: diary/#")
    await expect(page.get_by_text("No rules found.")).to_be_visible()
    await peer.publish("diary/today", b"3", qos=1)
    await page.get_by_label("Topic contains…").fill("")
    await row(page, SHOWN).first.get_by_role("button", name="Delete").click()
    await confirmed(page, "Delete", SHOWN)
    await expect(row(page, SHOWN)).to_have_count(0)
    await page.get_by_label("Rules for").select_option("all")
    await page.get_by_role("button", name="New rule").click()
    await send(dialog, topic="closed/#", access="deny", action="sub")
    await expect(page.get_by_label("Topic of rule 1")).to_have_value("closed/#")
    await expect(page.get_by_label("Action of rule 1")).to_have_value("sub")
    await peer.subscribe("closed/#", expect=[0x87])
    await delete_the_only_rule(page)
    await peer.subscribe("closed/#")
    await page.get_by_label("Rules for").select_option("anonymous")
    await page.get_by_role("button", name="New rule").click()
    await send(dialog, topic="members/#", access="deny", action="sub")
    await expect(page.get_by_label("Topic of rule 1")).to_have_value("members/#")
    await peer.subscribe("members/#", expect=[0x87])
    await delete_the_only_rule(page)
    await peer.subscribe("members/#")


async def delete_the_only_rule(page: Page) -> None:
    await page.get_by_role("button", name="Delete rule 1").click()
    await expect(page.get_by_text("No rules found.")).to_be_visible()
    await page.get_by_role("button", name="Save rules").click()
    await expect(page.get_by_text("Unsaved changes")).to_have_count(0)


async def test_bans(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/access/bans?new=1&as=clientid&who=noisy")
    noisy = await shared_node.client("noisy")
    dialog = page.get_by_role("dialog")
    await expect(control(dialog, "who")).to_have_value("noisy")
    await send(dialog, minutes="soon")
    await expect(fault(dialog, "minutes")).to_have_text("Enter a number.")
    await send(dialog, minutes="0")
    await expect(fault(dialog, "minutes")).to_contain_text("0.1")
    await send(dialog, minutes="30", reason=HOSTILE)
    await expect(dialog).to_have_count(0)
    await expect(row(page, "noisy")).to_contain_text(SHOWN)
    await noisy.expect_disconnect(0x98)
    await shared_node.client("noisy", expect=0x8A)
    await page.keyboard.press("n")
    await send(dialog, **{"as": "peerhost"}, who="no address")
    await expect(fault(dialog, "who")).to_contain_text("no address")
    user = {"login": HOSTILE, "password": SECRET, "is_superuser": False}
    assert (await shared_node.api.post("/auth_user", user)).code == 0
    named = [await shared_node.client(f"named-{n}", username=HOSTILE, password=SECRET.encode()) for n in (1, 2)]
    await send(dialog, **{"as": "username"}, who=HOSTILE)
    await expect(row(page, SHOWN)).to_have_count(2)
    for peer in named:
        await peer.expect_disconnect(0x98)
    # Only who comes from now on.
    stays = await shared_node.client("stays")
    await page.get_by_role("button", name="New ban").click()
    await send(dialog, who="stays", kick=False)
    await expect(row(page, "stays")).to_be_visible()
    await stays.ping()
    await accessible(page)
    await row(page, "noisy").get_by_role("button", name="Lift ban").click()
    await confirmed(page, "Lift ban", "noisy")
    await expect(row(page, "noisy")).to_have_count(0)
    await shared_node.client("noisy")
    await row(page, "stays").get_by_role("button", name="Lift ban").click()
    await confirmed(page, "Lift ban", "stays")
    await row(page, SHOWN).get_by_role("button", name="Lift ban").click()
    await confirmed(page, "Lift ban", SHOWN)
    await expect(page.get_by_text("No bans.")).to_be_visible()
    assert (await shared_node.api.delete(f"/auth_user/{quote(HOSTILE, safe='')}")).code == 0


async def test_applications(open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/access/apps")
    await expect(row(page, "admin")).to_be_visible()
    await page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    await submit(dialog)
    await expect(fault(dialog, "app_id")).to_have_text("This field is required.")
    await send(dialog, app_id="a b", name="x")
    await expect(fault(dialog, "app_id")).to_contain_text("letters")
    await send(dialog, app_id="meter", name=HOSTILE, desc="reads\u202emeters", days="30")
    shown = page.get_by_role("dialog", name="Secret of meter")
    secret = await shown.locator("code").inner_text()
    await shown.get_by_role("button", name="Done").click()
    meter = ApiClient(f"http://127.0.0.1:{shared_node.ports['management']}", app=("meter", secret))
    assert (await meter.get("/nodes")).code == 0
    await expect(row(page, "meter")).to_contain_text(SHOWN)
    await expect(row(page, "meter")).to_contain_text("[RLO]")
    await accessible(page)
    # What is not touched stays; switched off, it is refused.
    expires = {one["app_id"]: one["expired"] for one in (await shared_node.api.get("/apps")).data}["meter"]
    await row(page, "meter").get_by_role("button", name="Edit").click()
    await expect(control(dialog, "days")).to_have_value("30")
    await send(dialog, status=False)
    await expect(row(page, "meter")).to_contain_text("disabled")
    kept = (await shared_node.api.get("/apps/meter")).data
    assert (kept["expired"], kept["name"], kept["status"]) == (expires, HOSTILE, False)
    assert (await meter.get("/nodes")).status == 401
    await row(page, "meter").get_by_role("button", name="Edit").click()
    await expect(control(dialog, "scopes")).to_have_value("all")
    await send(dialog, days="", desc="", status=True, scopes="read,publish")
    await expect(row(page, "meter")).to_contain_text("never")
    await expect(row(page, "meter")).to_contain_text("read and publish")
    await expect(row(page, "meter")).to_contain_text("127.0.0.1")
    assert (await meter.get("/nodes")).code == 0 and (await meter.delete("/clients/c")).status == 403
    await row(page, "meter").get_by_role("button", name="Delete").click()
    await confirmed(page, "Delete", "meter")
    await expect(row(page, "meter")).to_have_count(0)
    assert (await meter.get("/nodes")).status == 401
    await meter.close()


async def test_dashboard_users(dashboard: Dashboard, open_page: OpenPage, shared_node: DashboardNode) -> None:
    page = await open_page("/access/admins")
    await expect(row(page, "admin")).to_be_visible()
    await page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    await send(dialog, username="second")
    await expect(fault(dialog, "password")).to_have_text("This field is required.")
    await send(dialog, password="short")
    await expect(fault(dialog, "password")).to_contain_text("8")
    await send(dialog, password=PASSWORD, role="viewer", tags=HOSTILE)
    await expect(row(page, "second")).to_contain_text("viewer")
    await expect(row(page, "second")).to_contain_text(SHOWN)
    await accessible(page)
    await page.get_by_role("button", name="New dashboard user").click()
    await send(dialog, username="second", password=PASSWORD)
    await expect(dialog.get_by_role("alert")).to_contain_text("second")
    await dialog.get_by_role("button", name="Cancel").click()
    # The last administrator stays one.
    await row(page, "admin").first.get_by_role("button", name="Edit").click()
    await send(dialog, role="viewer")
    await expect(dialog.get_by_role("alert")).to_be_visible()
    await dialog.get_by_role("button", name="Cancel").click()
    # The new one changes the own password, which ends the login.
    other = await dashboard.open("/access/admins", role=None)
    await other.get_by_label("Username").fill("second")
    await other.get_by_label("Password").fill(PASSWORD)
    await other.keyboard.press("Enter")
    await other.get_by_role("button", name="Change my password").click()
    own = other.get_by_role("dialog")
    await send(own, old_pwd="guessed-1", new_pwd="Another-one-2", again="Another-one-3")
    await expect(fault(own, "again")).to_have_text("The passwords do not match.")
    await send(own, again="Another-one-2")
    await expect(own.get_by_role("alert")).to_be_visible()
    await send(own, old_pwd=PASSWORD)
    ended = other.get_by_role("dialog", name="Log in again")
    await expect(ended).to_contain_text("Your session has expired")
    await ended.get_by_label("Password").fill("Another-one-2")
    await other.keyboard.press("Enter")
    await expect(row(other, "second")).to_contain_text("viewer")
    # An administrator gives another role and password: the login ends too.
    await row(page, "second").get_by_role("button", name="Edit").click()
    await send(dialog, role="administrator", password=PASSWORD, tags="")
    await expect(row(page, "second")).to_contain_text("administrator")
    await other.reload()
    await expect(other.get_by_label("Password")).to_be_visible()
    await row(page, "second").get_by_role("button", name="Delete").click()
    await confirmed(page, "Delete", "second")
    await expect(row(page, "second")).to_have_count(0)


async def test_try_a_login(open_page: OpenPage, shared_node: DashboardNode) -> None:
    added = await shared_node.api.post("/auth_user", {"login": "door", "password": SECRET, "is_superuser": True})
    assert added.code == 0, added.text
    page = await open_page("/access/login")
    answer = page.get_by_role("status").filter(has_text="Login")
    await submit(page)
    await expect(answer).to_contain_text("Login accepted")
    await send(page, clientid="d", username="door", password="guessed")
    await expect(answer).to_contain_text("Login refused")
    await expect(page.get_by_text("0x86")).to_be_visible()
    await send(page, address="nowhere")
    await expect(fault(page, "address")).to_contain_text("nowhere")
    await send(page, password=SECRET, address="10.1.2.3", listener="mqtt:ws:ws", protocol="3.1.1")
    await expect(answer).to_contain_text("Login accepted")
    await expect(page.get_by_role("row", name="stored allow")).to_be_visible()
    await accessible(page)
    await send(page, username=HOSTILE, clientid=HOSTILE)
    await expect(answer).to_contain_text("Login refused")
    assert [one["clientid"] for one in (await shared_node.api.get("/clients")).data if one["clientid"] == "d"] == []
    assert (await shared_node.api.delete("/auth_user/door")).code == 0


async def test_try_a_login_by_certificate_and_by_scram(
    open_dashboard: Callable[[DashboardNode], Dashboard], tmp_path: Path
) -> None:
    """Each choice of the form: left empty, nonsense, everything; the answer names who comes in and what decides."""
    certificates = Certificates(tmp_path)
    certificates.issue("localhost")
    good, revoked = (Path(certificates.issue(name)[0]).read_text("ascii") for name in ("pump-7", "pump-8"))
    crl = certificates.revoke("pump-8")
    more = f"""
[[listeners]]
name = "secure"
type = "ssl"
bind = "127.0.0.1:{free_port()}"
[listeners.tls]
certfile = "{tmp_path}/localhost.pem"
keyfile = "{tmp_path}/localhost.key"
cafile = "{certificates.ca}"
crlfile = "{crl}"
verify = "required"
peer_cert_as_username = "cn"
[[access.users]]
username = "ann"
scram = "{ScramVerifier.create(SECRET)}"
"""
    node = await DashboardNode(tmp_path, more).start()
    try:
        dashboard = open_dashboard(node)
        page = await dashboard.open("/access/login")
        answer = page.get_by_role("status").filter(has_text="Login")
        await send(page, kind="certificate")
        await expect(fault(page, "certificate")).to_be_visible()
        await send(page, certificate="nonsense")
        await expect(fault(page, "certificate")).to_contain_text("no readable PEM certificate")
        await send(page, certificate=good, clientid="p")
        await expect(answer).to_contain_text("Login accepted")
        await expect(row(page, "revocation by tls.crlfile")).to_be_visible()
        await expect(page.get_by_text("pump-7", exact=True)).to_be_visible()
        await accessible(page)
        await send(page, certificate=revoked)
        await expect(answer).to_contain_text("certificate revoked")
        await expect(page.get_by_text("tls.crlfile", exact=True).first).to_be_visible()
        await send(page, certificate=good, listener="mqtt:tcp:tcp")
        await expect(fault(page, "certificate")).to_contain_text("has no TLS")
        await send(page, kind="names", listener="")
        await expect(fault(page, "cert_common_name")).to_be_visible()
        await send(page, cert_common_name=HOSTILE, cert_subject="CN=x")
        await expect(answer).to_contain_text("Login accepted")
        await send(page, kind="scram", username="", password="")
        await expect(fault(page, "username")).to_be_visible()
        await send(page, username="ann", password="wrong")
        await expect(answer).to_contain_text("wrong password")
        await send(page, password=SECRET)
        await expect(answer).to_contain_text("Login accepted")
        viewer = await dashboard.open("/access/login", role="viewer")
        await expect(viewer.get_by_role("button", name="Test login")).to_be_disabled()
    finally:
        await node.stop()


async def test_viewers_look_and_change_nothing(open_page: OpenPage) -> None:
    page = await open_page("/access", role="viewer")
    for tab, button in TABS.items():
        await page.goto(page.url.partition("#")[0] + f"#/access/{tab}")
        await expect(page.get_by_role("button", name=button)).to_be_disabled()
        assert await page.locator("tbody .danger:enabled").count() == 0
        await accessible(page, (390,))
    await page.goto(page.url.partition("#")[0] + "#/access/login")
    await expect(page.get_by_role("button", name="Test login")).to_be_disabled()
