"""/data: exports and imports, what real clients notice of them, and names that would lead elsewhere."""

import asyncio
import base64
import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.access.emqx_hash import EmqxHash
from taipan.broker.access.foreign_hashes import NO_BCRYPT
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.stored.rules import ALL
from taipan.broker.access.stored.rules import CLIENT_ID as RULE_CLIENT_ID
from taipan.broker.access.stored.rules import USERNAME as RULE_USERNAME
from taipan.broker.access.stored.users import CLIENT_ID, USERNAME
from tests.broker.access.test_foreign_hashes import BCRYPT, mosquitto6
from tests.support.access import authorized
from tests.support.api import APP_ID, ApiClient, ManagedNode, assert_refused, connect_code, managed_node, segment
from tests.support.emqx_modules import POSTGRESQL, REDIS
from tests.support.no_package import without
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

EXPORTS = Path(__file__).parent / "exports"
VERSIONS = ("4.1", "4.2.14", "4.3", "4.4")
CHEAP = {"hash_cost": 10}
NAME = re.compile(r"broker-export-\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d\.json")
EMPTY: dict[str, Any] = {"version": "4.4"}


def salted_md5(password: bytes) -> str:
    return base64.b64encode(b"salt" + hashlib.md5(b"salt" + password).digest()).decode()


def export_of(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EXPORTS / f"emqx-{version}.json").read_text())
    return found


async def exported(node: ManagedNode) -> dict[str, Any]:
    """What an export of the node holds."""
    name = (await node.api.post("/data/export")).data["filename"]
    reply = await node.api.get(f"/data/file/{name}")
    assert reply.status == 200
    found: dict[str, Any] = reply.json
    return found


async def people(node: ManagedNode) -> None:
    """Something of every kind."""
    api = node.api
    users = [
        {"login": "alice", "password": "a-secret", "is_superuser": False},
        {"login": "root1", "password": "r1", "is_superuser": True},
    ]
    assert (await api.post("/auth_user", users)).code == 0
    assert (await api.post("/auth_clientid", {"clientid": "meter", "password": "m1"})).code == 0
    rules = [
        {"login": "alice", "topic": "t", "action": "pub", "allow": True},
        {"login": "alice", "topic": "t", "action": "pubsub", "allow": False},
        {"login": "$all", "topic": "x/#", "action": "sub", "allow": False},
    ]
    assert (await api.post("/broker_acl", rules)).code == 0
    rule = {"clientid": "meter", "topic": "m/%c", "action": "pub", "access": "allow"}
    assert (await api.post("/acl", rule)).code == 0
    for kind, who in (("clientid", "bad"), ("peerhost", "10.9.8.7"), ("username", "worse")):
        ban = {"as": kind, "who": who, "until": 4102444800, "kick": who == "worse"}
        assert (await api.post("/banned", ban)).code == 0
    assert (
        await api.post("/apps", {"app_id": "app2", "name": "n", "secret": "a second secret", "desc": "d"})
    ).code == 0
    config = {"url": "http://127.0.0.1:1/hook"}
    assert (await api.post("/resources", {"type": "web_hook", "config": config, "id": "resource:1"})).code == 0
    for rawsql, actions in (
        ('SELECT * FROM "t/#"', [{"name": "do_nothing", "params": {}}]),
        ('SELECT * FROM "u"', [{"name": "data_to_webserver", "params": {"$resource": "resource:1"}}]),
    ):
        assert (await api.post("/rules", {"rawsql": rawsql, "actions": actions})).code == 0
    for topic, payload in (("r/1", "one"), ("r/2", "two")):
        body = {"clientid": "c", "topic": topic, "payload": payload, "retain": True, "qos": 1}
        body["properties"] = {"content_type": "text/plain", "correlation_data": "x", "user_properties": {"a": "b"}}
        assert (await api.post("/mqtt/publish", body)).code == 0


# ----------------------------------------------------------------------- export


@pytest.mark.parametrize("whole", [True, False])
async def test_an_import_may_begin_with_a_byte_order_mark(whole: bool) -> None:
    """Editors of Windows put it there; the text in ``file`` may have it too."""
    text = "\ufeff" + json.dumps(export_of("4.4"))
    async with managed_node() as node:
        raw = text if whole else json.dumps({"filename": "x.json", "file": text})
        reply = await node.api.ask("POST", "/data/import", raw=raw.encode())
        assert reply.code == 0, reply.text


async def test_exports_of_one_second_do_not_replace_each_other() -> None:
    async with managed_node() as node:  # whose clock stands still
        names = [(await node.api.post("/data/export")).data["filename"] for _ in range(5)]
        assert len(set(names)) == 5 and all(NAME.fullmatch(name) for name in names)
        assert {row["filename"] for row in (await node.api.get("/data/export")).data} == set(names)


@pytest.mark.parametrize("field", ["size", "filename", "created_at", "node", "code"])
async def test_export_field(field: str) -> None:
    async with managed_node() as node:
        reply = await node.api.post("/data/export")
        record = {**reply.data, "code": reply.code}
        path = Path(node.settings.node.data_dir) / "backup" / record["filename"]
        if field == "size":
            assert record["size"] == path.stat().st_size
        elif field == "filename":
            assert NAME.fullmatch(record["filename"])
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        elif field == "created_at":
            assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", record["created_at"])
        else:
            assert record[field] == {"node": node.name, "code": 0}[field]


async def test_the_file_is_what_was_stored() -> None:
    async with managed_node(management={"backup_retained": True}, access=CHEAP) as node:
        await people(node)
        found = await exported(node)
        assert found["version"] == "4.4" and found["taipan"]["version"] == node.server.version
        assert [(row["login"], row["type"], row["is_superuser"]) for row in found["auth_mnesia"]] == [
            ("alice", "username", False),
            ("root1", "username", True),
            ("meter", "clientid", False),
        ]
        assert {"clientid": "bad"} in [row["who"] for row in found["blacklist"]]
        assert {"peerhost": [ord(char) for char in "10.9.8.7"]} in [row["who"] for row in found["blacklist"]]
        assert [row["kick"] for row in found["blacklist"]] == [False, False, True]
        (app,) = found["apps"]
        assert app["id"] == "app2" and "secret" not in app and len(app["secret_sha256"]) == 64
        assert [row["topic"] for row in found["acl_mnesia"]] == ["m/%c", "t", "t", "x/#"]  # subject by subject
        assert [row["topic"] for row in found["retained"]] == ["r/1", "r/2"]
        assert "a-secret" not in json.dumps(found) and "a second secret" not in json.dumps(found)
        assert [row["id"] for row in found["resources"]] == ["resource:1"]
        assert [row["rawsql"] for row in found["rules"]] == ['SELECT * FROM "t/#"', 'SELECT * FROM "u"']


@pytest.mark.parametrize("setting, value", [("max_messages", 2), ("max_bytes", 2000), ("max_payload_size", 99)])
async def test_retained_messages_above_a_limit_are_refused_before_anything_changes(setting: str, value: int) -> None:
    async with managed_node(retained={setting: value}, management={"backup_retained": True}) as node:
        peer = await node.client("c1")
        await peer.publish("r/0", b"here", qos=1, retain=True)
        file = await exported(node)
        row = file["retained"][0]
        large = base64.b64encode(b"x" * 100).decode()
        file["retained"] = [{**row, "topic": f"r/{number}", "payload": large} for number in range(1, 4)]
        reply = await node.api.post("/data/import", file)
        assert reply.status == 400 and f"retained.{setting}" in reply.json["message"]
        assert list(node.server.broker.retained.topics()) == ["r/0"]
        if setting != "max_payload_size":
            file["retained"] = file["retained"][:1]
            assert (await node.api.post("/data/import", file)).code == 0
            assert sorted(node.server.broker.retained.topics()) == ["r/0", "r/1"]


async def test_retained_messages_are_an_option() -> None:
    async with managed_node(access=CHEAP) as node:
        await people(node)
        assert "retained" not in await exported(node)


async def test_listing_and_deletion() -> None:
    async with managed_node() as node:
        assert (await node.api.get("/data/export")).data == []
        record = (await node.api.post("/data/export")).data
        assert (await node.api.get("/data/export")).data == [record]
        upload = {"filename": "up.json", "file": json.dumps(EMPTY)}
        assert (await node.api.post("/data/file", upload)).data["filename"] == "up.json"
        assert {row["filename"] for row in (await node.api.get("/data/export")).data} == {record["filename"], "up.json"}
        for path in (f"/data/export/{record['filename']}", "/data/file/up.json"):
            assert (await node.api.delete(path)).json == {"code": 0}
            assert_refused(await node.api.delete(path), 404, 102)
        assert (await node.api.get("/data/export")).data == []


# ------------------------------------------------------------------- round trip


@pytest.mark.parametrize("level", ["memory", "disk"])
async def test_export_import_export_is_the_same(level: str) -> None:
    settings: dict[str, Any] = {"management": {"backup_retained": True}, "access": CHEAP}
    async with managed_node(**settings) as node:
        await people(node)
        assert (await node.api.post("/data/import", export_of("4.4"))).code == 0
        first = await exported(node)
    async with managed_node(**settings, durability={"level": level}) as other:
        assert (await other.api.post("/data/import", first)).code == 0
        second = await exported(other)
        assert (await other.api.post("/data/import", first)).code == 0
        third = await exported(other)
        for version in (4, 5):
            assert await connect_code(other, "c", "alice", b"a-secret", version) == 0
            assert await connect_code(other, "c", "alice", b"wrong", version) != 0
            assert await connect_code(other, "meter", None, None, version) != 0
            assert await connect_code(other, "bad", "alice", b"a-secret", version) != 0
        app = ApiClient(other.management.url, app=("app2", "a second secret"))
        assert (await app.get("/brokers")).status == 200
        await app.close()
        reader = await other.client("reader", username="root1", password=b"r1")
        await reader.subscribe("r/#", qos=1)
        got = {(await reader.expect_publish()).topic for _ in range(2)}
        assert got == {"r/1", "r/2"}
    for each in (first, second, third):
        each.pop("date")
    assert first == second == third


async def test_what_was_imported_survives_at_level_disk(tmp_path: Path) -> None:
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}, "access": CHEAP}
    async with managed_node(**config) as node:
        assert (await node.api.post("/data/import", export_of("4.4"))).code == 0
        first = await exported(node)
        assert not (tmp_path / "import.plan").exists()
    async with managed_node(**config) as node:
        second = await exported(node)
        assert await connect_code(node, "c", "carol", b"c-secret", 5) == 0
    first.pop("date"), second.pop("date")
    assert first == second


# ------------------------------------------------------------- files of EMQX 4.x


@pytest.mark.parametrize("mqtt", [4, 5])
@pytest.mark.parametrize("version", VERSIONS)
async def test_users_of_old_files_log_in(version: str, mqtt: int) -> None:
    async with managed_node(access=CHEAP) as node:
        assert (await node.api.post("/data/import", export_of(version))).code == 0
        assert await connect_code(node, "c", "carol", b"c-secret", mqtt) == 0
        assert await connect_code(node, "c", "carol", b"other", mqtt) != 0
        assert await connect_code(node, "meter-1", "nobody", b"m-secret", mqtt) == 0
        assert await connect_code(node, "meter-1", "nobody", b"other", mqtt) != 0
        if version < "4.3":
            assert await connect_code(node, "c", "dora", b"d-secret", mqtt) == 0
            root = node.server.stored_users.get(USERNAME, "root1")
            assert root is not None and root.is_superuser


@pytest.mark.parametrize("version", VERSIONS)
async def test_applications_of_old_files_manage(version: str) -> None:
    file = export_of(version)
    for app_record in file["apps"]:
        app_record["secret"] = "of an operator"
    async with managed_node() as node:
        assert (await node.api.post("/data/import", file)).code == 0
        app = ApiClient(node.management.url, app=("admin", "of an operator"))
        assert (await app.get("/brokers")).status == 200
        await app.close()
        expired = (await node.api.get("/apps/admin")).data["expired"]
        assert expired == ("undefined" if version < "4.3" else 4102444800)


@pytest.mark.parametrize("version", VERSIONS)
async def test_rules_and_bans_of_old_files(version: str) -> None:
    async with managed_node() as node:
        assert (await node.api.post("/data/import", export_of(version))).code == 0
        rules = node.server.stored_rules
        carol = [(row.topic, row.action, row.allow) for row in rules.of(RULE_USERNAME, "carol")]
        everybody = [(row.topic, row.action, row.allow) for row in rules.of(ALL)]
        (ban,) = (await node.api.get("/banned")).data
        if version < "4.3":
            assert carol == [("t", "pub", True), ("x/#", "sub", False)]
            assert everybody == [("all/%c", "pubsub", False)]
            assert (ban["as"], ban["who"], ban["kick"]) == ("clientid", "bad", False)
        else:
            # The newest first.
            assert carol == [("t", "sub", True), ("t", "pub", False)]
            assert everybody == [("secret", "pubsub", False)]
            assert [row.topic for row in rules.of(RULE_CLIENT_ID, "meter-1")] == ["m/#"]
            assert (ban["as"], ban["who"]) == ("peerhost", "10.9.8.7")


@pytest.mark.parametrize("version", VERSIONS)
async def test_rule_engine_of_old_files(version: str) -> None:
    async with managed_node() as node:
        assert (await node.api.post("/data/import", export_of(version))).code == 0
        rule = (await node.api.get("/rules")).data[0]
        resources = {row["id"]: row for row in (await node.api.get("/resources")).data}
        if version == "4.2.14":
            hook, bridge = resources["resource:2560b776"]["config"], resources["resource:bridge"]["config"]
            assert (hook["connect_timeout"], hook["request_timeout"]) == ("5s", "7s")
            assert hook["headers"] == {"content-type": "application/json"} and hook["method"] == "POST"
            assert (bridge["ssl"], bridge["bridge_mode"], bridge["pool_size"]) == (False, True, 8)
            (action,) = rule["actions"]
            assert (action["params"]["method"], action["params"]["path"], action["id"]) == (
                "GET",
                "/p",
                "data_to_webserver_1",
            )
            assert rule["enabled"] is False and rule["description"] == "hook"
        else:
            assert (rule["id"], rule["enabled"]) == ("rule:ba1d14f4", True)
            assert rule["actions"][0]["id"] == "inspect_1795167515106840173"
            assert len(resources) == 1
            await node.api.post("/mqtt/publish", {"clientid": "c", "topic": "t/1", "payload": "x"})
            metrics = (await node.api.get("/rules/rule:ba1d14f4")).data["metrics"][0]
            assert metrics["matched"] == 1


@pytest.mark.parametrize("section", ["schemas", "modules", "configs", "rules", "resources"])
async def test_carried_through(section: str) -> None:
    """Of the rule engine's sections that is what needs a type or an action that is not offered here."""
    async with managed_node() as node:
        given = export_of("4.4")
        assert (await node.api.post("/data/import", given)).code == 0
        found = await exported(node)
        if section in ("rules", "resources"):
            assert found[section][-1] == given[section][-1] | ({"created_at": 0} if section == "rules" else {})
        else:
            assert found[section] == given[section]
        assert (await node.api.post("/data/import", {"version": "4.4", "schemas": []})).code == 0
        assert (await exported(node))["schemas"] == given["schemas"]


@pytest.mark.parametrize(
    ("version", "taken"),
    [("4.1", True), ("4.1.0", True), ("4.2", True), ("4.2.14", True), ("4.3", True), ("4.3.22", True), ("4.4", True)]
    + [("4.4.19", True), ("4.0", False), ("4.0.13", False), ("3.9", False), ("5.0", False), ("", False), ("x", False)]
    + [(4.4, False), (None, False), (["4.4"], False)],
)
async def test_version(version: Any, taken: bool) -> None:
    async with managed_node() as node:
        reply = await node.api.post(
            "/data/import", {"version": version, "auth_mnesia": export_of("4.4")["auth_mnesia"]}
        )
        if taken:
            assert reply.json == {"code": 0}
        else:
            assert reply.status == 400 and reply.code in (107, 108), reply.text
        assert (node.server.stored_users.get(USERNAME, "carol") is not None) == taken


@pytest.mark.parametrize("where", ["query", "member", "top"])
@pytest.mark.parametrize("kind", [USERNAME, CLIENT_ID])
async def test_env_says_what_a_login_is(where: str, kind: str) -> None:
    async with managed_node() as node:
        directive = {"auth.mnesia.as": kind}
        body = export_of("4.1")
        if where == "query":
            reply = await node.api.post("/data/import", body, env=json.dumps(directive))
        else:
            reply = await node.api.post(
                "/data/import", {**body, **({"env": directive} if where == "member" else directive)}
            )
        assert reply.code == 0
        assert node.server.stored_users.get(kind, "carol") is not None
        assert node.server.stored_rules.of(kind, "carol")


async def test_env_replaces_members() -> None:
    async with managed_node() as node:
        env = {"version": "4.4", "auth_mnesia": [], "apps": [{"id": "mine", "secret": "s"}]}
        reply = await node.api.post("/data/import", {**export_of("4.3"), "version": "3.0"}, env=json.dumps(env))
        assert reply.code == 0
        assert node.server.stored_users.all() == []
        assert (await node.api.get("/apps/mine")).data["app_id"] == "mine"
        for wrong in ("[]", "1", '{"auth.mnesia.as": "x"}'):
            assert_refused(await node.api.post("/data/import", EMPTY, env=wrong), 400, 108)
        assert_refused(await node.api.post("/data/import", EMPTY, env="{"), 400, 109)


# ------------------------------------------------------------------------ forms


@pytest.mark.parametrize("form", ["content", "download", "filename", "path", "upload"])
async def test_forms_of_an_import(form: str) -> None:
    async with managed_node() as node:
        text = json.dumps(export_of("4.4"))
        backup = Path(node.settings.node.data_dir) / "backup"
        if form == "content":
            body: Any = export_of("4.4")
        elif form == "download":
            body = {"filename": "emqx-export-2026-11-20-9-32-10.json", "file": text}
        elif form == "upload":
            assert (await node.api.post("/data/file", {"filename": "up.json", "file": text})).code == 0
            body = {"filename": "up.json"}
        else:
            backup.mkdir(exist_ok=True)
            (backup / "emqx-export-2026-9-4-1-2-3.json").write_text(text)
            name = "emqx-export-2026-9-4-1-2-3.json"
            body = {"filename": name if form == "filename" else str(backup / name)}
        assert (await node.api.post("/data/import", body)).code == 0
        assert node.server.stored_users.get(USERNAME, "carol") is not None


async def test_a_dry_run_changes_nothing() -> None:
    async with managed_node() as node:
        before = await exported(node)
        counts = (await node.api.post("/data/import", export_of("4.4"), dry_run="true")).data
        assert (counts["auth_mnesia"], counts["acl_mnesia"], counts["blacklist"], counts["apps"]) == (2, 4, 1, 0)
        (admin,) = [each for each in counts["records"] if each["kind"] == "users"]
        assert counts["users"] == 0 and "EMQX's published default" in admin["detail"]
        assert counts["carried"] == {"modules": 1, "schemas": 1, "configs": 1, "resources": 1, "rules": 1}
        after = await exported(node)
        before.pop("date"), after.pop("date")
        assert before == after


async def test_a_dry_run_that_the_body_asks_for_tells_the_same() -> None:
    async with managed_node() as node:
        asked = (await node.api.post("/data/import", export_of("4.4"), dry_run="true")).data
        assert (await node.api.post("/data/import", {**export_of("4.4"), "dry_run": True})).data == asked
        assert node.server.stored_users.all() == []


def with_apps(*apps: tuple[str, str]) -> dict[str, Any]:
    return {"version": "4.4", "apps": [{"id": app_id, "secret": secret, "name": "n"} for app_id, secret in apps]}


@pytest.mark.parametrize("level", ["memory", "disk"])
async def test_replaced_applications_are_named(level: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="taipan.management")
    async with managed_node(durability={"level": level}) as node:
        first = with_apps(("one", "1"), ("two", "2"))
        assert (await node.api.post("/data/import", first)).json == {"code": 0}
        assert (await node.api.post("/data/import", first)).json == {"code": 0}
        assert "import_replaces_apps" not in caplog.text
        changed = with_apps(("two", "2"), ("one", "x"), ("three", "3"), ("one", "y"))
        assert (await node.api.post("/data/import", changed, dry_run="true")).data["replaced_apps"] == ["one"]
        assert "import_replaces_apps" not in caplog.text
        assert (await node.api.post("/data/import", changed)).json == {"code": 0, "data": {"replaced_apps": ["one"]}}
        assert "import_replaces_apps count=1 apps=one" in caplog.text
        assert (await node.api.post("/data/import", changed, dry_run="true")).data["replaced_apps"] == []


async def test_an_application_that_replaces_itself_is_told_so() -> None:
    """Its secret is another one from the answer on."""
    async with managed_node() as node:
        assert (await node.api.post("/apps", {"app_id": "me", "name": "n", "secret": "old"})).code == 0
        mine = ApiClient(node.management.url, app=("me", "old"))
        reply = await mine.post("/data/import", with_apps(("me", "new")))
        assert reply.json == {"code": 0, "data": {"replaced_apps": ["me"]}}
        assert (await mine.get("/brokers")).status == 401
        mine.app = ("me", "new")
        assert (await mine.get("/brokers")).status == 200
        await mine.close()


KNOWN = {
    "application": ("apps", {"id": "admin", "secret": "public"}),
    "application of EMQX's tokens": ("apps", {"id": "admin", "secret": "emqxsecret"}),
    "application, hashed": ("apps", {"id": "admin", "secret_sha256": hashlib.sha256(b"public").hexdigest()}),
    "dashboard user": ("users", {"username": "admin", "password": salted_md5(b"public"), "tags": "administrator"}),
    "user, plain": ("auth_mnesia", {"login": "admin", "password": base64.b64encode(b"saltpublic").decode(),
                                    "type": "username", "is_superuser": True}),
    "user, sha256": ("auth_mnesia", {"login": "admin", "type": "clientid", "password": base64.b64encode(
        b"salt" + hashlib.sha256(b"saltpublic").hexdigest().encode()).decode()}),
    "user, pbkdf2": ("auth_mnesia", {"login": "admin", "method": "pbkdf2", "iterations": 10, "salt": "s",
                                     "password_hash": hashlib.pbkdf2_hmac("sha256", b"public", b"s", 10).hex()}),
    "superuser, scrypt": ("auth_mnesia", {"login": "admin", "is_superuser": True, "password_hash": str(
        ScryptHash.create(b"emqxsecret", 16))}),
    "user, bcrypt": ("auth_mnesia", {"login": "admin", "password_hash":
                                     "$2b$04$7J7ZsEelELwtsYoc1u70FuRAMrqo3sNM8MamhdhcejdMeAHOoMYXK"}),
    "user, mosquitto": ("auth_mnesia", {"login": "admin", "password_hash": mosquitto6(b"public")}),
    "old user": ("auth_username", {"username": "admin", "password": base64.b64encode(
        hashlib.md5(b"public").hexdigest().encode()).decode()}),
}  # fmt: skip


@pytest.mark.parametrize("ours", [False, True], ids=["emqx", "ours"])
@pytest.mark.parametrize("name", KNOWN)
async def test_a_known_secret_never_comes_in(name: str, ours: bool, caplog: pytest.LogCaptureFixture) -> None:
    section, record = KNOWN[name]
    file = {"version": "4.4", section: [record], **({"taipan": {}} if ours else {})}
    async with managed_node(access={**CHEAP, "no_match": "deny"}) as node:
        assert (
            await node.api.post("/auth_user", [{"login": "carol", "password": "c", "is_superuser": False}])
        ).code == 0
        before = [each.app_id for each in node.management.operations.apps.listing()]
        told = await dry_run(node, file)
        (change,) = told["records"]
        assert (change["key"], change["action"]) == ("admin", "same") and "published default" in change["detail"]
        answer = (await node.api.post("/data/import", file)).data
        section = "auth_mnesia" if section == "auth_username" else section
        (left,) = answer["left_out"]
        assert left == told["left_out"][0] and (left["section"], left["id"]) == (section, "admin")
        assert left["reason"] == "default_secret"
        assert f"import_leaves_out count=1 records={section}/admin reason=default_secret" in caplog.text
        assert [each.app_id for each in node.management.operations.apps.listing()] == before
        assert node.management.operations.dashboard_users.get("admin") is None
        assert [user.name for user in node.server.stored_users.all()] == ["carol"]
        for secret in ("public", "emqxsecret"):
            stranger = ApiClient(node.management.url, app=("admin", secret))
            assert (await stranger.get("/brokers")).status == 401
            await stranger.close()
        for version in (4, 5):
            assert await connect_code(node, "admin", "admin", b"public", version) != 0


async def test_slow_hashes_are_tried_within_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    """Superusers first; those that are not tried come in, and the log counts them."""
    caplog.set_level("INFO", logger="taipan.management")
    derived = hashlib.pbkdf2_hmac("sha256", b"public", b"s", 600_000).hex()  # 0.3 s by the estimate
    slow = {"method": "pbkdf2", "iterations": 600_000, "salt": "s", "password_hash": derived}
    users = [{"login": f"u{index}", **slow, "is_superuser": index == 9} for index in range(10)]
    async with managed_node(access=CHEAP) as node:
        answer = (await node.api.post("/data/import", {"version": "4.4", "auth_mnesia": users})).data
        assert [each["id"] for each in answer["left_out"]] == ["u9", "u0", "u1", "u2"]
        assert len(node.server.stored_users.all()) == 6
        assert "import_hashes_not_tried count=6 reason=default_secret" in caplog.text


async def test_the_secret_that_a_node_made_for_admin_stays(tmp_path: Path) -> None:
    async with managed_node() as node:
        assert (await node.api.post("/apps", {"app_id": "admin", "name": "n", "secret": "made here"})).code == 0
        admin = ApiClient(node.management.url, app=("admin", "made here"))
        assert (await admin.post("/data/import", export_of("4.4"))).data["left_out"][0]["id"] == "admin"
        assert (await admin.get("/brokers")).status == 200
        admin.app = ("admin", "public")
        assert (await admin.get("/brokers")).status == 401
        await admin.close()


async def test_what_does_nothing_here_is_named_in_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with managed_node() as node:
        answer = (await node.api.post("/data/import", export_of("4.4"))).data
        told = await dry_run(node, export_of("4.4"))
        assert answer["without_effect"] == told["without_effect"] and answer["carried"] == told["carried"]
        named = {each["section"]: each for each in answer["without_effect"]}
        assert set(named) == {"schemas", "modules", "configs", "rules", "resources"}
        (resource,) = [each for each in export_of("4.4")["resources"] if each["id"] == named["resources"]["id"]]
        assert f"type {resource['type']} is unknown here" in named["resources"]["what"]
        assert re.search(
            r"kept only for the next export: the actions? \w+ (is|are) unknown here", named["rules"]["what"]
        )
        assert named["rules"]["id"]
        assert "import_without_effect records=" in caplog.text


INSTEAD = (
    "a persistent session stores messages for a client that is offline, without a database",
    "use lookup_sub_to_pgsql, _mysql or _redis, or proxy subscription (auto_subscribe.topics)",
)
LOOKUPS = ("lookup_sub_to_pgsql", "lookup_sub_to_mysql", "lookup_sub_to_redis")


@pytest.mark.parametrize("database", ["redis", "pgsql", "mysql", "mongo", "cassa", "clickhouse"])
async def test_the_actions_for_offline_messages_and_stored_subscriptions_are_named(database: str) -> None:
    """EMQX Enterprise has them; a rule with one of them is kept for the next export, and the answer says why."""
    names = [f"{kind}_{database}" for kind in ("offline_msg_to", "lookup_sub_to")]
    known = [name for name in names if name in LOOKUPS]
    rules = [
        {
            "id": f"rule:{name}",
            "rawsql": 'SELECT * FROM "t/#"',
            "enabled": True,
            "actions": [
                {"id": f"a{number}", "name": "do_nothing", "args": {}, "fallbacks": []},
                {"id": f"b{number}", "name": name, "args": {"$resource": "resource:1"}, "fallbacks": []},
            ],
        }
        for number, name in enumerate(names)
    ]
    async with managed_node() as node:
        answer = (await node.api.post("/data/import", {"version": "4.4", "rules": rules})).data
        told = {each["id"]: each["what"] for each in answer["without_effect"]}
        assert told == {
            f"rule:{name}": f"kept only for the next export: the action {name} is unknown here; {instead}"
            for name, instead in zip(names, INSTEAD, strict=True)
            if name not in known
        }
        exported = (await node.api.get("/data/export")).json
        assert exported["code"] == 0
        assert [each["id"] for each in (await node.api.get("/rules")).data] == [f"rule:{name}" for name in known]


@pytest.mark.parametrize(
    "type, instead",
    [
        ("backend_mongo_rs", "no server to test with can be installed from packages; send rows with data_to_kafka"),
        ("backend_cassa", "send rows with data_to_kafka, data_to_rabbit or data_to_webserver"),
        ("backend_dynamo", "send rows with data_to_kafka"),
        ("backend_hstreamdb", "send rows with data_to_kafka"),
        ("bridge_pulsar", "send rows with data_to_kafka"),
        ("bridge_rocket", "send rows with data_to_kafka"),
        ("bridge_gcp_pubsub", "send rows with data_to_kafka"),
        ("bridge_rpc", "use a cluster, or the resource bridge_mqtt"),
        ("parser_tcp", "decode payloads with a schema"),
        ("backend_mongolia", ""),
        ("backend_unheard", ""),
    ],
)
async def test_the_answer_says_what_to_use_in_place_of_a_resource(type: str, instead: str) -> None:
    resource = {"id": "resource:1", "type": type, "config": {}}
    action = type.replace("backend", "data_to").replace("bridge", "data_to").removesuffix("_rs")
    rule = {"id": "rule:1", "rawsql": 'SELECT * FROM "t"', "actions": [{"name": action, "args": {}}]}
    export = {"version": "4.4", "resources": [resource], "rules": [rule]}
    async with managed_node() as node:
        told = await dry_run(node, export)
        answer = (await node.api.post("/data/import", export)).data
        assert told["without_effect"] == answer["without_effect"]
        what = {each["section"]: each["what"] for each in answer["without_effect"]}
        assert what["resources"].startswith(f"kept only for the next export: type {type} is unknown here")
        assert what["rules"].startswith(f"kept only for the next export: the action {action} is unknown here")
        for each in what.values():
            assert each.partition(" is unknown here")[2].startswith(f"; {instead}" if instead else "")
            assert bool(each.partition(" is unknown here")[2]) is bool(instead)


async def test_a_module_that_authenticates_names_the_settings_to_write() -> None:
    """With what EMQX Enterprise exports, and without its password."""
    modules = [
        {"id": f"module:{name}", "type": name, "config": config, "enabled": name != "redis_authentication"}
        for name, config in (
            ("redis_authentication", REDIS),
            ("pgsql_authentication", POSTGRESQL),
            ("mongo_authentication", {"type": "single", "password": "public"}),
            ("http_authentication", {"auth_req": "http://127.0.0.1/auth"}),
            ("presence", {"qos": 0}),
        )
    ]
    async with managed_node() as node:
        answer = (await node.api.post("/data/import", {"version": "4.4", "modules": modules})).data
        named = {each["id"].removeprefix("module:"): each["what"] for each in answer["without_effect"]}
        assert answer["carried"] == {"modules": 5}
        told = named["pgsql_authentication"]
        assert "write [access.postgresql] into its configuration, with " in told
        assert 'server = "postgres:5432"' in told and "timeout = 5, " in told and 'password = "******"' in told
        assert f'acl_query = "{POSTGRESQL["acl_query"]}"' in told and "tls = false" in told
        told = named["redis_authentication"]
        assert "disabled; " in told and 'acl_cmd = "HGETALL mqtt_acl:%u"' in told
        assert "users in MongoDB are not supported" in named["mongo_authentication"]
        assert "write [access.http] into its configuration" in named["http_authentication"]
        assert "type presence is unknown here; the module emqx_mod_presence is on" in named["presence"]


async def test_what_is_named_is_bounded() -> None:
    async with managed_node() as node:
        apps = [{"id": f"a{index}", "secret": "public"} for index in range(150)]
        modules = [{"id": f"m{index}", "type": "x"} for index in range(150)]
        answer = (await node.api.post("/data/import", {"version": "4.4", "apps": apps, "modules": modules})).data
        assert len(answer["left_out"]) == len(answer["without_effect"]) == 100
        assert answer["carried"] == {"modules": 150}


async def test_an_application_of_the_configuration_is_not_replaced() -> None:
    async with managed_node() as node:
        for secret in ("x", "y"):
            assert (await node.api.post("/data/import", with_apps((APP_ID, secret)))).json == {"code": 0}
        assert (await node.api.get("/brokers")).status == 200


REPUBLISH = {"name": "republish", "args": {"target_topic": 1}}
BAD: dict[str, tuple[str, Any, str]] = {
    "user without login": ("auth_mnesia", {"type": "username", "password": "YWFhYWFh"}, "login"),
    "user with empty login": ("auth_mnesia", {"login": "", "password": "YQ=="}, "login"),
    "password no base64": ("auth_mnesia", {"login": "a", "password": "%"}, "password"),
    "password empty": ("auth_mnesia", {"login": "a", "password": ""}, "password"),
    "kind of user": ("auth_mnesia", {"type": "x", "login": "a", "password": "YQ=="}, "type"),
    "user no object": ("auth_mnesia", 1, ""),
    "old user": ("auth_clientid", {"username": "a", "password": "YQ=="}, "clientid"),
    "topic": ("acl_mnesia", {"login": "a", "topic": "a/#/b", "action": "pub", "allow": True}, "topic"),
    "action": ("acl_mnesia", {"login": "a", "topic": "a", "action": "both", "allow": True}, "action"),
    "allow": ("acl_mnesia", {"login": "a", "topic": "a", "action": "pub", "allow": "true"}, "allow"),
    "access": ("acl_mnesia", {"type": "all", "topic": "a", "action": "pub", "access": True}, "access"),
    "address": ("blacklist", {"who": {"peerhost": "x"}, "at": 1, "until": 2}, "who"),
    "who": ("blacklist", {"who": "x", "at": 1, "until": 2}, "who"),
    "charlist": ("blacklist", {"who": {"peerhost": [1000]}, "at": 1, "until": 2}, "who"),
    "until": ("blacklist", {"who": {"clientid": "x"}, "at": 1, "until": "soon"}, "until"),
    "app without secret": ("apps", {"id": "a", "name": "n"}, "secret"),
    "app id": ("apps", {"id": "a:b", "secret": "n"}, "id"),
    "app hash": ("apps", {"id": "a", "secret_sha256": "00"}, "secret_sha256"),
    "expired": ("apps", {"id": "a", "secret": "n", "expired": "never"}, "expired"),
    "sql": ("rules", {"id": "r", "rawsql": "SELECT", "actions": []}, ""),
    "actions": ("rules", {"id": "r", "rawsql": 'SELECT * FROM "t"', "actions": {}}, "actions"),
    "params": ("rules", {"id": "r", "rawsql": 'SELECT * FROM "t"', "actions": [REPUBLISH]}, ""),
    "config": ("resources", {"id": "r", "type": "web_hook", "config": 5}, "config"),
    "resource type": ("resources", {"id": "r", "config": {}}, "type"),
    "retained topic": ("retained", {"topic": "a/+", "payload": "YQ==", "qos": 0, "timestamp": 1}, "topic"),
    "retained payload": ("retained", {"topic": "a", "payload": "", "qos": 0, "timestamp": 1}, "payload"),
    "retained qos": ("retained", {"topic": "a", "payload": "YQ==", "qos": 3, "timestamp": 1}, "qos"),
    "retained property": (
        "retained", {"topic": "a", "payload": "YQ==", "qos": 1, "timestamp": 1, "properties": {"x": 1}}, "properties.x"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
async def test_one_wrong_record_and_nothing_is_imported(what: str) -> None:
    section, record, key = BAD[what]
    async with managed_node() as node:
        body = export_of("4.4")
        body[section] = [*body.get(section, []), record]
        place = len(body[section]) - 1
        reply = await node.api.post("/data/import", body)
        assert_refused(reply, 400, 108, section)
        (error,) = reply.json["data"]
        assert (error["section"], error["index"], error["key"]) == (section, place, key), error
        assert error["what"]
        assert node.server.stored_users.all() == [] and len(node.server.stored_rules) == 0
        assert (await node.api.get("/rules")).data == [] and (await exported(node))["users"] == []


async def test_every_wrong_record_is_told() -> None:
    async with managed_node(management={"error_status": "emqx"}) as node:
        users = [{"login": str(index)} for index in range(150)]
        reply = await node.api.post("/data/import", {"version": "4.4", "auth_mnesia": users, "apps": {}})
        assert (reply.status, reply.code) == (200, 108) and "151" in reply.json["message"]
        assert [row["index"] for row in reply.json["data"]] == list(range(100))


@pytest.mark.parametrize(
    ("raw", "code"),
    [(b"{", 109), (b"", 107), (b"  ", 107), (b"[]", 108), (b"1", 108), (b"{}", 107), (b'{"version": "4.4"', 109)]
    + [(b"\xff\xfe", 109), (b'{"version": NaN}', 109), (b'{"version":"4.4","a":' + b"[" * 100_000, 109)]
    + [(b'{"file": 1}', 108), (b'{"file": "{"}', 109), (b'{"file": "\\ud800"}', 109), (b'{"filename": 1}', 108)]
    + [(b'{"version":"4.4","auth_mnesia":[{"login":"\\ud800","password":"YQ=="}]}', 108)]
    + [(b'{"version":"4.4","dry_run":1}', 108), (b'{"version":"4.4","env":[]}', 108)]
    + [(b'{"version":"4.4","acl_mnesia":1}', 108), (b'{"version":"4.4","rules":{}}', 108)],
)
async def test_bodies_that_are_no_file(raw: bytes, code: int) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.ask("POST", "/data/import", raw=raw), 400, code)


async def test_a_body_over_the_limit() -> None:
    async with managed_node(management={"max_import": 1000}) as node:
        reply = await node.api.post("/data/import", {"version": "4.4", "x": "y" * 1000})
        assert_refused(reply, 400, 108, "max_import")
        backup = Path(node.settings.node.data_dir) / "backup"
        backup.mkdir()
        (backup / "big.json").write_text(json.dumps({"version": "4.4", "x": "y" * 1000}))
        assert_refused(await node.api.post("/data/import", {"filename": "big.json"}), 400, 108, "max_import")


@pytest.mark.parametrize("file", [None, 1, {"message": "not_found"}])
async def test_an_upload_that_is_no_text(file: Any) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.post("/data/file", {"filename": "up.json", "file": file}), 400, 109)
        assert_refused(await node.api.post("/data/file", {"filename": "up.json", "file": "no json"}), 400, 109)
        assert_refused(await node.api.post("/data/file", {"filename": "up.json"}), 400, 107)
        assert (await node.api.get("/data/export")).data == []


@pytest.mark.parametrize(
    ("raw", "code"),
    [(b"", 107), (b"{}", 107), (b"{", 109), (b"[]", 108), (b"\xff", 109), (b'{"file": []}', 109)]
    + [(b'{"file": "[]"}', 108), (b'{"file": "{}", "filename": 1}', 108), (b'{"file": "{}", "filename": []}', 108)]
    + [(b'{"file": "{}", "filename": null}', 108), (b'{"file": "\\ud800"}', 109)],
)
async def test_uploads_that_are_none(raw: bytes, code: int) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.ask("POST", "/data/file", raw=raw), 400, code)
        assert (await node.api.get("/data/export")).data == []


async def test_an_upload_is_kept_to_the_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taipan.management.operations.backup.backup._CHUNK", 999)
    text = json.dumps({"version": "4.4", "x": "ü\U0001f600" * 20_000}, ensure_ascii=False)
    async with managed_node() as node:
        for body in ({"file": text, "filename": "up.json"}, {"file": text}):
            row = (await node.api.post("/data/file", body)).data
            assert row["size"] == len(text.encode())
            assert (await node.api.get(f"/data/file/{row['filename']}")).text == text


async def test_the_query_string_wins_over_an_upload_s_members() -> None:
    async with managed_node() as node:
        body = {"file": "no json", "filename": "a.json"}
        row = (await node.api.post("/data/file", body, file='{"version":"4.4"}', filename="b.json")).data
        assert row["filename"] == "b.json"
        assert (await node.api.get("/data/file/b.json")).text == '{"version":"4.4"}'


# ---------------------------------------------------------------- hostile names

HOSTILE = (
    "../secret.json", "..%2Fsecret.json", "%2e%2e/secret.json", "..", ".", "/etc/passwd", "a\0.json", "\0", "x" * 5000,
    "x" * 300 + ".json", ".hidden.json", "secret", "secret.txt", "a/b.json", "a\\b.json", "ü.json", "a\nb.json",
    "link.json", "directory.json", "pipe.json", " .json", "",
)  # fmt: skip


CALLS = ("get", "delete", "delete_file", "upload", "import")


# In a path, no name at all is another endpoint.
@pytest.mark.parametrize(
    "call, name", [(call, name) for call in CALLS for name in HOSTILE if name or call in CALLS[3:]]
)
async def test_hostile_name(call: str, name: str) -> None:
    async with managed_node() as node:
        home = Path(node.settings.node.data_dir)
        secret = json.dumps(export_of("4.4"))
        (home / "secret.json").write_text(secret)
        (home / "backup").mkdir()
        (home / "backup" / "link.json").symlink_to(home / "secret.json")
        (home / "backup" / "directory.json").mkdir()
        os.mkfifo(home / "backup" / "pipe.json")
        before = sorted(home.rglob("*"))
        api = node.api
        async with asyncio.timeout(patience(40)):
            if call == "upload":
                reply = await api.post("/data/file", {"filename": name, "file": json.dumps(EMPTY)})
            elif call == "import":
                reply = await api.post("/data/import", {"filename": name})
            else:
                method = "GET" if call == "get" else "DELETE"
                path = "/data/export/" if call == "delete" else "/data/file/"
                reply = await api.ask(method, path + segment(name))
        if call == "upload" and name in ("link.json", "pipe.json"):
            # The entry is replaced; what the link led to stays.
            assert reply.code == 0 and (home / "backup" / name).is_file()
        elif call == "upload" and name == "":
            assert NAME.fullmatch(reply.data["filename"])
        else:
            assert reply.status in (400, 404, 500) and reply.code in (101, 102, 108), reply.text
            assert sorted(home.rglob("*")) == before
        assert (home / "secret.json").read_text() == secret
        assert node.server.stored_users.all() == []


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "{home}/../x.json", "{home}/backup/out.json", "{home}/lock", "/", "//"]
)
async def test_absolute_paths_lead_nowhere_else(path: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(export_of("4.4")))
    home = tmp_path / "data"
    async with managed_node(node={"data_dir": str(home)}) as node:
        (home / "backup").mkdir(parents=True)
        (home / "backup" / "out.json").symlink_to(tmp_path / "x.json")
        (home / "way").symlink_to(tmp_path)
        for each in (path.format(home=home), f"{home}/way/x.json"):
            assert_refused(await node.api.post("/data/import", {"filename": each}), 404, 102)
        assert node.server.stored_users.all() == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/data/export"), ("GET", "/data/export"), ("GET", "/data/file/a.json"), ("POST", "/data/import")]
    + [("POST", "/data/file"), ("DELETE", "/data/file/a.json"), ("DELETE", "/data/export/a.json")],
)
@pytest.mark.parametrize("prefix", ["/api", "/api/v4"])
async def test_nothing_without_credentials(method: str, path: str, prefix: str) -> None:
    async with managed_node() as node:
        anonymous = ApiClient(node.management.url, prefix, app=None)
        assert (await anonymous.ask(method, path)).status == 401
        await anonymous.close()


# ------------------------------------------------------------ connected clients


@pytest.mark.parametrize("version", [4, 5])
async def test_an_import_counts_for_connected_clients(version: int) -> None:
    async with managed_node(access=CHEAP) as node:
        await node.api.post("/auth_user", [{"login": "carol", "password": "x", "is_superuser": False}])
        carol = await node.client("c", version, username="carol", password=b"x")
        channel = node.server.context.channels["c"]
        assert authorized(node.server.access, channel.client, "publish", "t")
        assert (await node.api.post("/data/import", export_of("4.3"))).code == 0
        assert not authorized(node.server.access, channel.client, "publish", "t")
        user = {"login": "carol", "type": "username", "password": "YWFhYWFh", "is_superuser": True}
        assert (await node.api.post("/data/import", {"version": "4.4", "auth_mnesia": [user]})).code == 0
        assert channel.client.is_superuser
        await carol.disconnect()


@pytest.mark.parametrize("version", [4, 5])
async def test_an_import_makes_no_superuser_of_who_proved_to_be_somebody_else(version: int) -> None:
    """Neither of a device that its identifier's password let in under that name, nor of who came before the user."""
    async with managed_node(access={**CHEAP, "no_match": "deny"}) as node:
        await node.client("early", version, username="root1", password=b"whatever")
        await node.api.post("/auth_clientid", {"clientid": "device", "password": "d1"})
        await node.client("device", version, username="root1", password=b"d1")
        user = {"login": "root1", "type": "username", "password": "YWFhYWFh", "is_superuser": True, "created_at": 1}
        assert (await node.api.post("/data/import", {"version": "4.4", "auth_mnesia": [user]})).code == 0
        assert (await node.api.get("/auth_user/root1")).data["is_superuser"] is True
        for client_id in ("early", "device"):
            client = node.server.context.channels[client_id].client
            assert not client.is_superuser
            assert authorized(node.server.access, client, "publish", "t") is False


@pytest.mark.parametrize("way", ["post", "import"])
async def test_a_user_made_anew_is_somebody_else(way: str) -> None:
    async with managed_node(access={**CHEAP, "no_match": "deny"}) as node:
        await node.api.post("/auth_user", [{"login": "root1", "password": "old", "is_superuser": False}])
        old = await node.client("c", 5, username="root1", password=b"old", expiry=3600)
        await node.api.delete("/auth_user/root1")
        await old.expect_disconnect(0x87)
        if way == "post":
            await node.api.post("/auth_user", [{"login": "root1", "password": "new", "is_superuser": False}])
            await node.api.put("/auth_user/root1", {"password": "new", "is_superuser": True})
        else:
            user = {"login": "root1", "type": "username", "password": "YWFhYWFh", "is_superuser": True, "created_at": 1}
            assert (await node.api.post("/data/import", {"version": "4.4", "auth_mnesia": [user]})).code == 0
        session = node.server.broker.sessions.get("c")
        assert session is not None and not session.client.is_superuser
        with pytest.raises(AssertionError, match="reason_code=134"):
            await node.client("c", 5, username="root1", password=b"old", expiry=3600)


async def test_rules_of_a_file_come_first_and_replace() -> None:
    async with managed_node() as node:
        old = [
            {"login": "carol", "topic": "t", "action": "pubsub", "allow": True},
            {"login": "carol", "topic": "x/#", "action": "sub", "allow": True},
            {"login": "carol", "topic": "mine", "action": "pub", "allow": True},
        ]
        assert (await node.api.post("/broker_acl", old)).code == 0
        assert (await node.api.post("/data/import", export_of("4.1"))).code == 0
        rows = [(row.topic, row.action, row.allow) for row in node.server.stored_rules.of(RULE_USERNAME, "carol")]
        assert rows == [("t", "pub", True), ("x/#", "sub", False), ("t", "sub", True), ("mine", "pub", True)]


async def test_ready_hashes_come_and_go() -> None:
    """In the fields of ``POST /auth_user``, and back in an export as they are stored."""
    hashed = {"password_hash": hashlib.sha256(b"NaClsecret").hexdigest(), "method": "sha256", "salt": "NaCl"}
    derived = hashlib.pbkdf2_hmac("sha512", b"secret", b"salt", 10).hex()
    bcrypt = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"
    given = [
        {"type": "username", "login": "ann", **hashed},
        {"type": "username", "login": "bea", "password_hash": bcrypt},
        {
            "type": "clientid",
            "login": "cat",
            "password_hash": derived,
            "method": "pbkdf2",
            "salt": "salt",
            "iterations": 10,
            "digest": "sha512",
        },
    ]
    async with managed_node(access=CHEAP) as node:
        assert (await node.api.post("/data/import", {"version": "4.4", "auth_mnesia": given})).code == 0
        made = {"login": "dev", "is_superuser": False, "generate": True}
        secret = (await node.api.post("/auth_user", [made])).json["passwords"]["dev"]
        found = await exported(node)
    async with managed_node(access=CHEAP) as node:
        assert (await node.api.post("/data/import", found)).code == 0
        for username, password in (("ann", "secret"), ("bea", "U*U"), ("dev", secret)):
            await node.client(f"by {username}", 5, username=username, password=password.encode())
        await node.client("cat", 5, username="x", password=b"secret")
        bad = {"type": "username", "login": "x", "password_hash": "00", "method": "sha256"}
        assert_refused(await node.api.post("/data/import", {"version": "4.4", "auth_mnesia": [bad]}), 400, 108, "32")


@pytest.mark.parametrize("exported_by", ["taipan", "others"])
async def test_without_bcrypt_a_file_with_its_hashes_is_refused(
    monkeypatch: pytest.MonkeyPatch, exported_by: str
) -> None:
    users = [{"type": "username", "login": "bea", "password_hash": BCRYPT[b"U*U"]}]
    found: dict[str, Any] = {"version": "4.4", "auth_mnesia": users}
    if exported_by == "taipan":
        async with managed_node(access=CHEAP) as node:
            assert (await node.api.post("/data/import", found)).code == 0
            found = await exported(node)
    without(monkeypatch, "bcrypt")
    async with managed_node(access=CHEAP) as node:
        assert_refused(await node.api.post("/data/import", found), 400, 108, NO_BCRYPT)
        assert node.server.stored_users.all() == []


async def test_hashes_of_emqx_stay_what_they_are() -> None:
    async with managed_node() as node:
        given = export_of("4.3")
        assert (await node.api.post("/data/import", given)).code == 0
        user = node.server.stored_users.get(USERNAME, "carol")
        assert user is not None and EmqxHash.parse(user.password).salt == b"\x01\x02\x03\x04"
        found = await exported(node)
        assert [row["password"] for row in found["auth_mnesia"]] == [row["password"] for row in given["auth_mnesia"]]
        assert [row["created_at"] for row in found["auth_mnesia"]] == [
            row["created_at"] for row in given["auth_mnesia"]
        ]


def changes_of(told: Any) -> dict[tuple[str, str], tuple[str, str]]:
    return {(each["kind"], each["key"]): (each["action"], each["detail"]) for each in told["records"]}


async def dry_run(node: ManagedNode, file: Any, **query: Any) -> Any:
    return (await node.api.post("/data/import", file, dry_run="true", **query)).data


async def test_a_dry_run_says_what_each_record_would_do_and_the_import_does_that() -> None:
    async with managed_node(management={"backup_retained": True}) as node:
        told = await dry_run(node, export_of("4.4"))
        changes = changes_of(told)
        for section in ("users", "apps"):
            action, why = changes.pop((section, "admin"))
            assert action == "same" and "EMQX's published default" in why
        assert {action for action, _ in changes.values()} == {"create"}
        assert told["totals"]["auth_mnesia"] == {"create": 2, "change": 0, "same": 0, "remove": 0}
        assert (await node.api.post("/data/import", export_of("4.4"))).code == 0
        told = await dry_run(node, export_of("4.4"))
        assert {action for action, _ in changes_of(told).values()} == {"same"}
        # One's own export changes nothing either.
        told = await dry_run(node, await exported(node))
        assert {action for action, _ in changes_of(told).values()} == {"same"}


async def test_a_dry_run_tells_what_is_other() -> None:
    async with managed_node(management={"backup_retained": True}) as node:
        peer = await node.client("c")
        await peer.publish("r/1", b"old", 1, retain=True)
        for path, body in (
            ("/auth_username", {"username": "ann", "password": "p"}),
            ("/acl", {"username": "ann", "topic": "t", "action": "pubsub", "access": "allow"}),
            ("/banned", {"as": "clientid", "who": "bad", "reason": "floods"}),
            ("/apps", {"app_id": "one", "name": "n", "secret": "s" * 20}),
        ):
            reply = await node.api.post(path, body)
            assert reply.code == 0, reply.text
        file = await exported(node)
        file["auth_mnesia"][0]["is_superuser"] = True
        for rule in file["acl_mnesia"]:
            rule["access"] = "deny"
        file["blacklist"][0] |= {"reason": "other", "kick": False}
        file["apps"][0]["name"] = "m"
        told = await dry_run(node, file | {"auth_mnesia": [], "acl_mnesia": [], "blacklist": [], "apps": []})
        assert changes_of(told) == {("retained", "r/1"): ("same", "")}
        file["retained"][0]["payload"] = "bmV3"
        file["retained"].append({**file["retained"][0], "topic": "r/2"})
        found = changes_of(await dry_run(node, file))
        assert found["auth_mnesia", "ann"] == ("change", "username: is_superuser")
        assert found["acl_mnesia", "ann t"][0] == "change"
        assert found["blacklist", "bad"] == ("change", "clientid: reason, kick")
        assert found["apps", "one"] == ("change", "name")
        assert found["retained", "r/1"] == ("change", "payload")
        assert found["retained", "r/2"] == ("create", "")


async def test_the_records_of_a_dry_run_come_in_pages_and_totals_count_all() -> None:
    async with managed_node() as node:
        users = [{"login": f"u{n}", "type": "username", "password": "x" * 44, "created_at": 1} for n in range(25)]
        file = {"version": "4.3", "auth_mnesia": users}
        told = await dry_run(node, file, _page=2, _limit=10)
        assert [each["key"] for each in told["records"]] == [f"u{n}" for n in range(10, 20)]
        assert told["totals"]["auth_mnesia"]["create"] == 25
        assert (await dry_run(node, file, _limit=0))["records"] == []


async def test_rules_for_anonymous_clients_and_for_one_listener_come_and_go() -> None:
    async with managed_node() as node:
        label = node.server.listeners[0].label
        new = [
            {"login": "$anonymous", "topic": "t", "action": "pub", "allow": False, "listener": label},
            {"login": "$anonymous", "topic": "t", "action": "pub", "allow": True},
        ]
        assert (await node.api.post("/broker_acl", new)).code == 0
        first = await exported(node)
    assert [each.get("listener") for each in first["acl_mnesia"]] == [label, None]
    async with managed_node() as other:
        assert (await other.api.post("/data/import", first)).code == 0
        assert (await other.api.post("/data/import", first)).code == 0
        assert (await other.api.get("/broker_acl")).data == new
