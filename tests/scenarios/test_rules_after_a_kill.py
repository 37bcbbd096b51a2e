"""Rules in a real process that is killed while the web server they send to is away: what was acknowledged arrives."""

import asyncio
import json
from pathlib import Path

import pytest

from taipan.broker.mqtt.constants import SESSION_EXPIRY_INTERVAL
from taipan.broker.mqtt.packets import Will
from tests.support.api import APP_ID, SECRET, ApiClient
from tests.support.http_sink import HttpSink
from tests.support.node import NodeProcess, free_port
from tests.support.patience import patience
from tests.support.peer import Address, Peer
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

CONFIG = """
[node]
data_dir = "{directory}"

[[listeners]]
name = "default"
type = "tcp"
bind = "127.0.0.1:{port}"

[[management.apps]]
id = "{app}"
secret = "{secret}"

[ruleengine]
retry_backoff = 0.02
retry_backoff_max = 0.1
breaker_pause = 0.1
liveness_interval = 0.1
"""
MESSAGES = 30


async def killed(node: NodeProcess) -> None:
    node.process.kill()
    await node.process.communicate()


def api_of(node: NodeProcess) -> ApiClient:
    (url,) = (each.removeprefix("management=") for each in node.ready.split() if each.startswith("management="))
    return ApiClient(url)


@pytest.mark.parametrize("qos", [1, 2])
async def test_every_acknowledged_row_arrives_after_kill_9(tmp_path: Path, qos: int) -> None:
    """Killed twice, once with rows waiting and once while these are sent: all arrive, each client's in order."""
    port = free_port()
    config = tmp_path / "taipan.toml"
    config.write_text(CONFIG.format(directory=tmp_path / "data", port=port, app=APP_ID, secret=SECRET))
    sink = HttpSink()  # away
    node = await NodeProcess(config).start()
    try:
        api = api_of(node)
        hook = {"type": "web_hook", "config": {"url": f"{sink.url}/rows", "pool_size": 2}, "id": "resource:hook"}
        await api.post("/resources", hook)
        action = {"name": "data_to_webserver", "params": {"$resource": "resource:hook"}}
        rule = {"rawsql": 'SELECT payload.n as n, clientid FROM "rows/#"', "actions": [action], "id": "rule:rows"}
        assert (await api.post("/rules", rule)).data["enabled"] is True
        await api.close()
        publishers = [Peer(Address("127.0.0.1", port)) for _ in range(3)]
        for number, each in enumerate(publishers):
            await each.connect(f"p{number}")

        async def publish(peer: Peer) -> None:
            for number in range(MESSAGES):
                await peer.publish("rows/1", json.dumps({"n": number}).encode(), qos)

        await asyncio.gather(*map(publish, publishers))
        await killed(node)
        for each in publishers:
            await each.close()

        await sink.start()
        node = await NodeProcess(config).start()
        await until(lambda: len(sink.requests) >= 10)
        await killed(node)
        node = await NodeProcess(config).start()

        def rows() -> set[tuple[str, int]]:
            return {(row["clientid"], row["n"]) for row in map(json.loads, sink.bodies)}

        await until(lambda: len(rows()) >= 3 * MESSAGES)
        assert rows() == {(f"p{number}", n) for number in range(3) for n in range(MESSAGES)}
        for number in range(3):
            mine = [row["n"] for row in map(json.loads, sink.bodies) if row["clientid"] == f"p{number}"]
            assert list(dict.fromkeys(mine)) == list(range(MESSAGES))

        api = api_of(node)
        # Nothing waits any more, and the counters know.
        async with asyncio.timeout(patience(40)):
            while (await api.get("/resources/resource:hook")).data["status"][0]["buffer"]["waiting"]:
                await asyncio.sleep(0.02)
        sent = len(sink.requests)
        peer = Peer(Address("127.0.0.1", port))
        await peer.connect("late")
        await peer.publish("rows/1", b'{"n":-1}', qos)
        await until(lambda: len(sink.requests) > sent)
        assert json.loads(sink.bodies[-1]) == {"n": -1, "clientid": "late"}
        await peer.close()
        await api.close()
    finally:
        await node.stop()
        await sink.stop()


@pytest.mark.parametrize("version", [4, 5])
async def test_rules_see_the_wills_of_clients_that_the_kill_cut_off(tmp_path: Path, version: int) -> None:
    """Such wills go out when the node is there again, before anybody is let in: the rules are there by then too."""
    port = free_port()
    config = tmp_path / "taipan.toml"
    config.write_text(CONFIG.format(directory=tmp_path / "data", port=port, app=APP_ID, secret=SECRET))
    sink = await HttpSink().start()
    node = await NodeProcess(config).start()
    try:
        api = api_of(node)
        hook = {"type": "web_hook", "config": {"url": f"{sink.url}/rows"}, "id": "resource:hook"}
        await api.post("/resources", hook)
        action = {"name": "data_to_webserver", "params": {"$resource": "resource:hook"}}
        rule = {"rawsql": 'SELECT clientid, payload FROM "wills/#"', "actions": [action], "id": "rule:wills"}
        assert (await api.post("/rules", rule)).data["enabled"] is True
        await api.close()
        peer = Peer(Address("127.0.0.1", port), version)
        properties = {SESSION_EXPIRY_INTERVAL: 3600} if version == 5 else {}
        await peer.connect("willing", version == 5, will=Will("wills/1", b"gone", 1), properties=properties)
        await killed(node)
        await peer.close()
        node = await NodeProcess(config).start()
        await until(lambda: sink.requests)
        assert [json.loads(body) for body in sink.bodies] == [{"clientid": "willing", "payload": "gone"}]
    finally:
        await node.stop()
        await sink.stop()
