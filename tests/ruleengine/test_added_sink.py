"""A sink of a package that is installed next to Taipan, from outside: over HTTP, MQTT and its own server."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.engine import RuleEngine
from taipan.ruleengine.types.operator_modules import OperatorModuleError
from tests.support.api import managed_node
from tests.support.fake_engine import FakeEngine
from tests.support.line_server import LineServer
from tests.support.packages import install
from tests.support.waiting import until

QUICK = {"liveness_interval": 0.05, "retry_backoff": 0.01, "retry_backoff_max": 0.05, "breaker_pause": 0.05}


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    install("lines", folder)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("taipan_lines", None)


@pytest.mark.asyncio
@pytest.mark.parametrize("version", [4, 5])
async def test_a_sink_of_a_package(version: int) -> None:
    server = await LineServer("t0ken").start()
    async with managed_node(ruleengine=QUICK) as node:
        assert "line_server" in [each["name"] for each in (await node.api.get("/resource_types")).data]
        assert (await node.api.get("/actions/data_to_lines")).data["types"] == ["line_server"]
        config = {"server": f"127.0.0.1:{server.port}", "token": "t0ken", "retry_attempts": 2}
        made = await node.api.post("/resources", {"id": "lines", "type": "line_server", "config": config})
        assert made.data["config"]["token"] == "******"
        assert (await node.api.get("/resources/lines")).data["status"][0]["is_alive"]
        action = {
            "name": "data_to_lines",
            "params": {"$resource": "lines", "line": "${payload}", "batch_size": 50, "batch_time": 1000},
        }
        rule = {"id": "rule:r", "rawsql": 'SELECT * FROM "t/#"', "actions": [action]}
        assert (await node.api.post("/rules", rule)).code == 0
        client = await node.client(version=version)
        for number in range(50):
            await client.publish("t/1", b"%d" % number, qos=1)
        await until(lambda: len(server.lines) == 50)
        assert [int(each) for each in server.lines] == list(range(50))
        await until(lambda: sum(server.requests) == 50)
        assert max(server.requests) > 1  # the engine has put rows into batches

        # While the server restarts, rows wait; a row that it never accepts becomes a dead letter.
        await server.stop()
        for number in range(50, 60):
            await client.publish("t/1", b"%d" % number, qos=1)
        server.answer = lambda line: b"busy" if line == b"55" else b"ok"
        await server.start()
        await until(lambda: len(server.lines) == 59)
        await until(lambda: node.engine.rules.lookup("rule:r").actions[0].metrics[0].failed == 1)
        (letter,) = (await node.api.get("/resources/lines/dead_letters")).data
        assert "busy" in letter["reason"] and letter["attempts"] == 2
        await client.close()
    await server.stop()


def test_a_name_that_exists(site: Path) -> None:
    text = (site / "taipan_lines.py").read_text("utf-8").replace('"line_server",\n', '"web_hook",\n', 1)
    (site / "taipan_lines.py").write_text(text, "utf-8")
    with pytest.raises(OperatorModuleError, match="resource type web_hook"):
        RuleEngine(FakeEngine().server, RuleEngineSettings())


@pytest.mark.parametrize("text", ["RESOURCES = ['text']", "RESOURCES = 5"])
def test_what_is_no_resource_type(site: Path, text: str) -> None:
    (site / "taipan_lines.py").write_text(text, "utf-8")
    with pytest.raises(OperatorModuleError, match="RESOURCES is not a list of ResourceType"):
        RuleEngine(FakeEngine().server, RuleEngineSettings())
