"""Refused networks: whatever name or notation leads there, no connection is made."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from taipan.ruleengine.allowed_networks import Networks, RefusedAddress
from taipan.ruleengine.config import RuleEngineSettings

DEFAULT = Networks(RuleEngineSettings().refused_networks)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "fd20:ce::254",
        "100.100.100.200",
        "168.63.129.16",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
    ],
)
def test_metadata_and_link_local_addresses_are_refused_by_default(address: str) -> None:
    with pytest.raises(RefusedAddress, match=r"ruleengine\.refused_networks"):
        DEFAULT.check(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.1", "192.168.1.1", "8.8.8.8", "2001:db8::1"])
def test_other_addresses_are_not(address: str) -> None:
    DEFAULT.check(address)


def test_the_list_is_the_operators() -> None:
    Networks([]).check("169.254.169.254")
    with pytest.raises(RefusedAddress):
        Networks(["10.0.0.0/8"]).check("10.1.2.3")


@pytest.mark.asyncio
async def test_a_name_is_judged_by_what_it_resolves_to_when_it_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(*arguments: Any, **more: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
    with pytest.raises(RefusedAddress, match=r"169\.254\.169\.254"):
        await DEFAULT.connect("innocent.example", 80, 2.0)


@pytest.mark.asyncio
async def test_the_next_address_is_tried_where_the_first_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def resolve(*arguments: Any, **more: Any) -> list[Any]:
        addresses = [("169.254.169.254", port), ("127.0.0.1", port)]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
    await DEFAULT.probe("two.example", port, 2.0)
    server.close()
