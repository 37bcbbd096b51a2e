"""Refused networks: whatever name or notation leads there, no connection is made."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, cast

import pytest

from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.network.allowed_networks import Networks, RefusedAddress
from tests.support.certificates import Certificates
from tests.support.patience import patience

DEFAULT = Networks(RuleEngineSettings().refused_networks)


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


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


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "::ffff:0.0.0.0", "64:ff9b::"])
@pytest.mark.parametrize("network", ["127.0.0.0/8", "::1/128"])
def test_the_unspecified_address_is_this_machine(address: str, network: str) -> None:
    with pytest.raises(RefusedAddress, match=network):
        Networks([network]).check(address)


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


@pytest.mark.asyncio
@pytest.mark.parametrize("tls", [True, False])
async def test_who_gives_up_as_a_connection_comes_about_takes_nothing_from_the_next(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    """The socket was closed below its transport, which stayed registered for 30 s: the next connection got the same
    descriptor and failed."""
    made, lost = asyncio.StreamReaderProtocol.connection_made, asyncio.StreamReaderProtocol.connection_lost
    ended: list[asyncio.StreamReaderProtocol] = []

    def give_up(self: asyncio.StreamReaderProtocol, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        connecting.cancel()

    def end(self: asyncio.StreamReaderProtocol, error: Exception | None) -> None:
        lost(self, error)
        ended.append(self)

    loop = asyncio.get_running_loop()
    served = None
    if tls:
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(certificates.directory / "localhost.pem", certificates.directory / "localhost.key")
    server = await loop.create_server(Echo, "127.0.0.1", 0, ssl=served)
    plain = await loop.create_server(Echo, "127.0.0.1", 0)
    context = ssl.create_default_context(cafile=certificates.ca) if tls else None
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.StreamReaderProtocol, "connection_made", give_up)
        patched.setattr(asyncio.StreamReaderProtocol, "connection_lost", end)
        port = server.sockets[0].getsockname()[1]
        connecting = asyncio.create_task(DEFAULT.connect("127.0.0.1", port, 40.0, context, "localhost"))
        await asyncio.wait([connecting])
        assert connecting.cancelled()
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(ended) == 1
    reader, writer = await DEFAULT.connect("127.0.0.1", plain.sockets[0].getsockname()[1], 40.0)
    writer.write(b"heard")
    async with asyncio.timeout(patience(40)):
        assert await reader.readexactly(5) == b"heard"
    writer.close()
    await writer.wait_closed()
    for each in (server, plain):
        each.close()
