"""TLS of resources: whom they trust, by which name, and what they show of themselves."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from ruleengine.actions import web_hook as action
from ruleengine.resources import mqtt_bridge, web_hook
from ruleengine.resources.resource import ResourceError
from tests.broker.transport.conftest import Certificates
from tests.ruleengine.rig import HttpSink, Rig, published, until
from tests.support.node import start_node

pytestmark = pytest.mark.asyncio


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path)
    made.issue("localhost")
    return made


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await made.close()


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
    rig: Rig, certificates: Certificates, config: dict[str, Any], trusted: bool
) -> None:
    sink = await HttpSink().start(_server(certificates))
    if "cacertfile" in config:
        config = {**config, "cacertfile": certificates.ca}
    hook = rig.run(web_hook.TYPE, url=f"https://127.0.0.1:{sink.port}/", **config)
    rig.action(action.TYPE).run({"x": 1}, published())
    await until(lambda: rig.told.successes or "certificate" in hook.status["buffer"]["last_error"].lower())
    assert (rig.told.successes == 1) == trusted == (len(sink.requests) == 1)
    await sink.stop()


async def test_a_client_certificate_is_shown(rig: Rig, certificates: Certificates) -> None:
    sink = await HttpSink().start(_server(certificates, client=True))
    certfile, keyfile = certificates.issue("me")
    rig.run(web_hook.TYPE, url=f"https://127.0.0.1:{sink.port}/", certfile=certfile, keyfile=keyfile)
    rig.action(action.TYPE).run({"x": 1}, published())
    await until(lambda: rig.told.successes == 1)
    await sink.stop()


@pytest.mark.parametrize("name, trusted", [(None, True), ("other", False), ("disable", True)])
async def test_whom_a_bridge_trusts(rig: Rig, certificates: Certificates, name: str | None, trusted: bool) -> None:
    tls = msgspec.to_builtins(certificates.settings())
    node = await start_node(listeners=[{"type": "ssl", "tls": tls}])
    config: dict[str, Any] = {"ssl": True, "verify": True, "cacertfile": certificates.ca}
    if name is not None:
        config["server_name_indication"] = name
    bridge = rig.make(mqtt_bridge.TYPE, address=f"127.0.0.1:{node.address('ssl').port}", **config)
    if trusted:
        await bridge.test()
    else:
        with pytest.raises(ResourceError, match="certificate"):
            await bridge.test()
    await node.stop()
