"""``Server.reload`` over several listeners: all of it or nothing, and each file is read once."""

import os
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.broker.config import BrokerSettings, RuleSettings, TlsSettings
from taipan.broker.mqtt.constants import MAXIMUM_QOS
from taipan.broker.transport.tls import build_context
from tests.support.certificates import Certificates
from tests.support.node import Node, make_settings, start_node

pytestmark = pytest.mark.asyncio


async def secure_node(certificates: Certificates) -> Node:
    tls = msgspec.to_builtins(certificates.settings())
    return await start_node(listeners=[{"type": "tcp", "name": "plain"}, {"type": "ssl", "name": "safe", "tls": tls}])


def changed(settings: BrokerSettings, **access: Any) -> BrokerSettings:
    """The same with another limit for each listener and other access settings."""
    replace = msgspec.structs.replace
    return replace(
        settings,
        listeners=tuple(replace(each, max_connections=5) for each in settings.listeners),
        access=replace(settings.access, **access),
    )


def state(node: Node) -> list[Any]:
    server = node.server
    facts = [server._facts[each.name] for each in server.listeners]
    return [
        server.settings,
        server.access.settings,
        *facts,
        *((each.settings, each.context) for each in server.listeners),
    ]


async def test_everything_changes_and_each_file_is_read_once(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await secure_node(certificates)
    read: list[ssl.SSLContext] = []

    def build(settings: TlsSettings) -> ssl.SSLContext:
        read.append(build_context(settings))
        return read[-1]

    monkeypatch.setattr("taipan.broker.transport.listener.build_context", build)
    node.server.reload(changed(node.settings, no_match="deny"))
    assert len(read) == 1
    assert [each.context for each in node.server.listeners] == [None, read[0]]
    assert [each.max_connections for each in node.server.listeners] == [5, 5]
    assert node.server.access.settings.no_match == "deny"
    await node.stop()


async def test_a_file_that_cannot_be_used_changes_nothing_and_its_listener_is_named(
    certificates: Certificates, tmp_path: Path
) -> None:
    node = await secure_node(certificates)
    before = state(node)
    os.truncate(tmp_path / "localhost.pem", 100)
    with pytest.raises(ValueError, match=r"tls\.certfile: listener safe: "):
        node.server.reload(changed(node.settings, no_match="deny"))
    assert state(node) == before
    await node.stop()


async def test_a_rule_that_cannot_be_read_changes_nothing(certificates: Certificates) -> None:
    node = await secure_node(certificates)
    before = state(node)
    with pytest.raises(ValueError):
        node.server.reload(changed(node.settings, rules=[RuleSettings(allow=True, topics=["a#"])]))
    assert state(node) == before
    await node.stop()


async def test_listeners_of_different_types_with_one_name_keep_their_own_zones() -> None:
    settings = make_settings(listeners=[{"type": "tcp", "name": "shared"}, {"type": "ws", "name": "shared"}])
    zones = tuple(msgspec.structs.replace(settings.zones["external"], max_qos=qos) for qos in (1, 0))
    node = await Node(msgspec.structs.replace(settings, listener_zones=zones)).start()
    try:
        for transport, max_qos in (("tcp", 1), ("ws", 0)):
            client = node.peer(5, transport)
            connack = await client.connect()
            assert connack.properties[MAXIMUM_QOS] == max_qos
        assert [each.label for each in node.server.listeners] == ["shared", "ws:shared"]
        counted = node.server.sys_topics._listeners()
        assert {label: numbers["accepted"] for label, numbers in counted.items()} == {"shared": 1, "ws:shared": 1}
        node.server.reload(changed(node.settings))
        assert [node.server._facts[each.label].zone.max_qos for each in node.server.listeners] == [1, 0]
    finally:
        await node.stop()
