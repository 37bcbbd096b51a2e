"""TLS of resources: whom they trust, by which name, and what they show of themselves."""

from __future__ import annotations

import ssl
from typing import Any

import msgspec
import pytest

from taipan.ruleengine.resources.liveness import NOT_TRIED
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.mqtt_bridge import resource as mqtt_bridge
from taipan.ruleengine.sinks.web_hook import action
from taipan.ruleengine.sinks.web_hook import resource as web_hook
from tests.support.certificates import Certificates
from tests.support.fake_engine import FakeEngine, published
from tests.support.http_sink import HttpSink
from tests.support.node import start_node
from tests.support.rule_engine_node import rule_engine_node
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


def _server(certificates: Certificates, client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.directory / "localhost.pem", certificates.directory / "localhost.key")
    if client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.ca)
    return context


@pytest.mark.parametrize(
    "config, trusted",
    [
        ({"verify": False}, True),
        ({"verify": True}, False),
        ({"verify": True, "cacertfile": "ca"}, True),
        ({"verify": True, "cacertfile": "ca", "server_name_indication": "localhost"}, True),
        ({"verify": True, "cacertfile": "ca", "server_name_indication": "other"}, False),
        ({"verify": True, "cacertfile": "ca", "server_name_indication": "disable"}, True),
    ],
)
async def test_whom_a_web_hook_trusts(
    engine: FakeEngine, certificates: Certificates, config: dict[str, Any], trusted: bool
) -> None:
    sink = await HttpSink().start(_server(certificates))
    if "cacertfile" in config:
        config = {**config, "cacertfile": certificates.ca}
    hook = engine.run(web_hook.TYPE, url=f"https://127.0.0.1:{sink.port}/", **config)
    engine.action(action.TYPE).run({"x": 1}, published())
    await until(lambda: engine.report.successes or "certificate" in hook.status.buffer.last_error.lower())
    assert (engine.report.successes == 1) == trusted == (len(sink.requests) == 1)
    await sink.stop()


async def test_rows_wait_while_a_certificate_does_not_hold(engine: FakeEngine, certificates: Certificates) -> None:
    sink = await HttpSink().start(_server(certificates))
    config = {"url": f"https://127.0.0.1:{sink.port}/", "verify": True, "pool_size": 1}
    hook = engine.run(web_hook.TYPE, **config)
    with pytest.raises(ResourceError, match="certificate"):
        await hook.test()
    act = engine.action(action.TYPE, body="${n}")
    for number in range(5):
        act.run({"n": number}, published())
    await until(lambda: hook.status.buffer.retried > 2 and "certificate" in hook.status.reason)
    assert not hook.alive and engine.alive == [] and engine.report.count == 0
    assert hook.status.buffer.waiting == 5 and hook.status.buffer.dropped == {}
    await hook.close()
    hook = engine.run(web_hook.TYPE, cacertfile=certificates.ca, **config)  # the operator mends it
    await until(lambda: engine.report.successes == 5 and hook.alive)
    assert sink.bodies == [b"%d" % number for number in range(5)]
    await sink.stop()


async def test_the_alarm_of_a_resource_says_that_its_certificate_does_not_hold(certificates: Certificates) -> None:
    sink = await HttpSink().start(_server(certificates))
    async with rule_engine_node(rules={"liveness_interval": 0.05}) as node:
        config = {"url": f"https://127.0.0.1:{sink.port}/", "verify": True}
        record = await node.engine.resources.create("web_hook", config)
        ((name, alarm),) = node.server.alarms.active.items()
        assert name == f"resource/web_hook/{record.id}/down" and "certificate" in alarm.details["fault"]
        assert record.status[0].is_alive is False and "certificate" in record.status[0].reason
        # So from the first attempt on, though the instance may have made none of its own yet.
        node.engine.resources.get(record.id).instance._liveness.reason = NOT_TRIED  # type: ignore[union-attr]
        assert "certificate" in node.engine.resources.lookup(record.id).status[0].reason
        await sink.stop()
        await until(lambda: "certificate" not in node.engine.resources.lookup(record.id).status[0].reason)
        node.engine.resources.tick()
        assert "certificate" not in node.server.alarms.active[name].details["fault"]
        await sink.start()  # without TLS
        await node.engine.resources.update(record.id, {"url": sink.url})
        await until(lambda: not node.server.alarms.active)
    await sink.stop()


async def test_a_server_that_wants_a_client_certificate_is_not_alive_without_one(
    engine: FakeEngine, certificates: Certificates
) -> None:
    sink = await HttpSink().start(_server(certificates, client=True))
    hook = engine.run(web_hook.TYPE, url=f"https://127.0.0.1:{sink.port}/")
    with pytest.raises(ResourceError, match=r"(?i)certificate"):
        await hook.test()
    assert not hook.alive
    await sink.stop()


async def test_a_client_certificate_is_shown(engine: FakeEngine, certificates: Certificates) -> None:
    sink = await HttpSink().start(_server(certificates, client=True))
    certfile, keyfile = certificates.issue("me")
    engine.run(web_hook.TYPE, url=f"https://127.0.0.1:{sink.port}/", certfile=certfile, keyfile=keyfile)
    engine.action(action.TYPE).run({"x": 1}, published())
    await until(lambda: engine.report.successes == 1)
    await sink.stop()


@pytest.mark.parametrize("name, trusted", [(None, True), ("other", False), ("disable", True)])
async def test_whom_a_bridge_trusts(
    engine: FakeEngine, certificates: Certificates, name: str | None, trusted: bool
) -> None:
    tls = msgspec.to_builtins(certificates.settings())
    node = await start_node(listeners=[{"type": "ssl", "tls": tls}])
    config: dict[str, Any] = {"ssl": True, "verify": True, "cacertfile": certificates.ca}
    if name is not None:
        config["server_name_indication"] = name
    bridge = engine.make(mqtt_bridge.TYPE, address=f"127.0.0.1:{node.address('ssl').port}", **config)
    if trusted:
        await bridge.test()
    else:
        with pytest.raises(ResourceError, match="certificate"):
            await bridge.test()
    await node.stop()
