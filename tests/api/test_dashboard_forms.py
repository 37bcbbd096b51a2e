"""What EMQX 4.4's dashboard and PHP's clients send: files with their text, fields left empty, ``[]`` for ``{}``; and
resources of an import that cannot be used as they are."""

import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import ManagedNode, managed_node
from tests.support.certificates import Certificates
from tests.support.http_sink import HttpSink
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

NO_FILE = {"filename": "", "file": ""}
QUICK = {"liveness_interval": 0.05}


def file(path: Any, name: str = "x.pem") -> dict[str, str]:
    return {"filename": name, "file": Path(path).read_text()}


async def test_a_web_hook_as_the_dashboard_makes_it(sink: HttpSink) -> None:
    """All fields of the form, the files not given; then an action with its method left empty."""
    config = {
        "url": sink.url, "method": "", "headers": [], "connect_timeout": "5s", "request_timeout": "5s", "pool_size": 8,
        "enable_pipelining": True, "cacertfile": NO_FILE, "keyfile": {"filename": "", "file": ""}, "certfile": "",
        "verify": False, "server_name_indication": "",
    }  # fmt: skip
    async with managed_node(ruleengine=QUICK) as node:
        new = {"type": "web_hook", "id": "resource:1", "description": "", "config": config}
        assert (await node.api.post("/resources", {**new, "test": True})).json == {"code": 0}
        made = (await node.api.post("/resources", new)).data
        assert (made["config"]["method"], made["config"]["headers"], made["config"]["cacertfile"]) == ("POST", {}, "")
        params = {"$resource": "resource:1", "method": "", "path": "", "headers": [], "body": ""}
        action = {"name": "data_to_webserver", "params": params, "fallbacks": []}
        rule = {"rawsql": 'SELECT payload.x as x FROM "t"', "actions": [action], "description": "", "enabled": True}
        assert (await node.api.post("/rules", rule)).code == 0
        await (await node.client("c1", 4)).publish("t", b'{"x": 1}', 1)
        await until(lambda: len(sink.requests) == 1)
        assert sink.requests[0][0] == "POST" and json.loads(sink.requests[0][3]) == {"x": 1}


@pytest.mark.parametrize("expired", ["", None, "undefined", 4_000_000_000])
async def test_an_application_as_the_dashboard_makes_it(expired: Any) -> None:
    async with managed_node() as node:
        app = {"app_id": "dash", "name": "d", "desc": "", "secret": "", "status": True, "expired": expired}
        made = (await node.api.post("/apps", app)).data
        assert len(made["secret"]) > 20


@pytest.mark.parametrize("action", [{"name": "inspect", "params": []}, {"name": "do_nothing", "params": []}])
async def test_php_s_empty_object(action: dict[str, Any]) -> None:
    async with managed_node() as node:
        made = (await node.api.post("/rules", {"rawsql": 'SELECT * FROM "t"', "actions": [action]})).data
        assert made["actions"][0]["params"] == {}


async def test_files_with_their_text_are_used_masked_and_stay_when_the_mask_comes_back(
    certificates: Certificates,
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.directory / "localhost.pem", certificates.directory / "localhost.key")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.ca)
    sink = await HttpSink().start(context)
    certfile, keyfile = certificates.issue("me")
    config = {
        "url": f"https://127.0.0.1:{sink.port}", "verify": True, "cacertfile": file(certificates.ca),
        "certfile": file(certfile), "keyfile": file(keyfile, "my.key"),
    }  # fmt: skip
    async with managed_node(ruleengine=QUICK) as node:
        made = await node.api.post("/resources", {"type": "web_hook", "id": "r", "config": config})
        assert made.code == 0 and "BEGIN" not in made.text
        assert made.data["config"]["keyfile"] == {"filename": "my.key", "file": "******"}
        await until(lambda: node.engine.resources.running("r").alive)
        shown = (await node.api.get("/resources/r")).data
        assert (await node.api.put("/resources/r", {"config": shown["config"]})).json == {"code": 0}
        assert node.engine.resources.stored()[0].config["keyfile"] == file(keyfile, "my.key")
        await until(lambda: node.engine.resources.running("r").alive)
        assert "BEGIN" not in (await node.api.get("/resources")).text
    await sink.stop()


async def imported(node: ManagedNode, *resources: dict[str, Any]) -> Any:
    return await node.api.post("/data/import", {"version": "4.4", "resources": list(resources)})


async def test_an_import_with_files_in_both_forms(certificates: Certificates) -> None:
    certfile, keyfile = certificates.issue("me")
    texts = {"certfile": file(certfile), "keyfile": file(keyfile), "cacertfile": file(certificates.ca)}
    async with managed_node() as node:
        url = "https://127.0.0.1:9"
        reply = await imported(
            node,
            {"id": "a", "type": "web_hook", "config": {"url": url, **dict.fromkeys(texts, NO_FILE)}},
            {"id": "b", "type": "web_hook", "config": {"url": url, "method": "", "headers": [], **texts}},
        )
        assert reply.json == {"code": 0}
        assert [each.fault for each in node.engine.resources.stored()] == ["", ""]


async def test_one_resource_that_cannot_be_used_comes_in_disabled_and_is_told(sink: HttpSink) -> None:
    action = {"name": "data_to_webserver", "args": {"$resource": "bad"}}
    rule = {"id": "rule:1", "rawsql": 'SELECT payload FROM "t"', "enabled": True, "actions": [action]}
    bad = {"id": "bad", "type": "web_hook", "config": {"url": sink.url, "cacertfile": "/none/such.pem", "verify": True}}
    bad["config"]["url"] = "https://127.0.0.1:9"  # type: ignore[index]
    good = {"id": "good", "type": "web_hook", "config": {"url": sink.url}}
    worse = {"id": "worse", "type": "bridge_mqtt", "config": {"address": 7, "password": "secret"}}
    async with managed_node(ruleengine=QUICK) as node:
        body = {"version": "4.4", "resources": [bad, good, worse], "rules": [rule]}
        tried = (await node.api.post("/data/import", body, dry_run="true")).data
        assert [each["id"] for each in tried["disabled"]] == ["bad", "worse"]
        told = (await node.api.post("/data/import", body)).data
        assert [(each["section"], each["index"], each["id"]) for each in told["disabled"]] == [
            ("resources", 0, "bad"), ("resources", 2, "worse"),
        ]  # fmt: skip
        assert "cacertfile" in told["disabled"][0]["what"] and "address" in told["disabled"][1]["what"]
        shown = {each["id"]: each for each in (await node.api.get("/resources")).data}
        assert "cacertfile" in shown["bad"]["fault"] and "fault" not in shown["good"]
        assert shown["worse"]["config"]["password"] == "******"
        assert "cacertfile" in (await node.api.get("/rules/rule:1")).data["suspended"]
        # Mended, it runs, and the rule with it.
        assert (await node.api.post("/resources/bad")).code == 108
        assert (await node.api.put("/resources/bad", {"config": {"url": sink.url}})).json == {"code": 0}
        assert "fault" not in (await node.api.get("/resources/bad")).data
        assert "suspended" not in (await node.api.get("/rules/rule:1")).data


async def test_a_disabled_resource_stays_so_over_a_restart_and_an_export(tmp_path: Path, sink: HttpSink) -> None:
    tables: dict[str, Any] = {"durability": {"level": "disk"}, "node": {"data_dir": str(tmp_path / "data")}}
    config = {"url": "https://127.0.0.1:9", "verify": True, "cacertfile": str(tmp_path / "later.pem")}
    async with managed_node(**tables) as node:
        assert (await imported(node, {"id": "r", "type": "web_hook", "config": config})).data["disabled"]
    async with managed_node(**tables) as node:
        assert "cacertfile" in (await node.api.get("/resources/r")).data["fault"]
        # What was missing is there by now: started again, it is tried.
        Path(config["cacertfile"]).write_text(Path(Certificates(tmp_path).ca).read_text())  # type: ignore[arg-type]
        reply = await node.api.post("/resources/r")
        assert reply.code == 108 and "cannot be reached" in reply.json["message"]
        assert "fault" not in (await node.api.get("/resources/r")).data
