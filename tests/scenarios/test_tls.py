"""The same broker over ssl and wss: certificates, client certificates, server names, reload."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from websockets.exceptions import WebSocketException

from taipan.broker.config import ListenerTlsSettings
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Connect, Will
from tests.support.certificates import Certificates
from tests.support.node import Node, start_node
from tests.support.peer import Closed, Peer

from .until_quiet import payloads

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(30)]

SECURE = pytest.mark.parametrize("transport", ["ssl", "wss"])

Open = Callable[..., Awaitable[Peer]]


class TlsNode:
    """A node with an ssl and a wss listener, and peers that trust its authority."""

    def __init__(self, directory: Path, version: int, transport: str) -> None:
        self.certificates = Certificates(directory)
        self.certificates.issue("localhost")
        self.version = version
        self.transport = transport
        self.node: Node
        self.peers: list[Peer] = []

    def tls(self, **keys: Any) -> dict[str, Any]:
        made: dict[str, Any] = msgspec.to_builtins(self.certificates.settings(**keys))
        return made

    async def start(
        self, zone: dict[str, Any] | None = None, listener: dict[str, Any] | None = None, **tls: Any
    ) -> None:
        shared = {"tls": self.tls(**tls), **(listener or {})}
        listeners = [{"type": "ssl", **shared}, {"type": "wss", **shared}, {"type": "tcp"}, {"type": "ws"}]
        self.node = await start_node(zone, listeners)

    def context(self, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.certificates.ca)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context

    def peer(self, certificate: tuple[str, str] | None = None) -> Peer:
        secure = self.transport in ("ssl", "wss")
        peer = Peer(self.node.address(self.transport), self.version, self.context(certificate) if secure else None)
        self.peers.append(peer)
        return peer

    async def connect(self, name: str = "", certificate: tuple[str, str] | None = None, **options: Any) -> Peer:
        peer = self.peer(certificate)
        await peer.connect(name or None, **options)
        return peer

    async def refused(self, certificate: tuple[str, str] | None = None) -> None:
        """No CONNACK: the handshake fails, or (TLS 1.3, where the client learns of it late) what follows it."""
        peer = self.peer(certificate)
        with pytest.raises((ssl.SSLError, OSError, EOFError, Closed, WebSocketException)):
            await self._first_answer(peer)

    async def _first_answer(self, peer: Peer) -> None:
        await peer.open()
        await peer.send(Connect(self.version, "refused"))
        await peer.receive()

    async def stop(self) -> None:
        try:
            for peer in self.peers:
                peer.abort()
        finally:
            await self.node.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def tls_node(tmp_path: Path, version: int, transport: str) -> AsyncIterator[TlsNode]:
    tls_node = TlsNode(tmp_path, version, transport)
    yield tls_node
    await tls_node.stop()


@SECURE
async def test_the_whole_conversation(tls_node: TlsNode) -> None:
    """[MQTT-4.2-1] [3.1.1 MQTT-7.1.1-1]"""
    await tls_node.start()
    watcher = await tls_node.connect()
    await watcher.subscribe("t/#", qos=2)
    peer = await tls_node.connect(will=Will("t/will", b"gone", 1))
    for qos in range(3):
        await peer.publish("t/x", b"%d" % qos, qos)
        await watcher.expect_publish("t/x", b"%d" % qos, qos)
    large = bytes(range(256)) * 4096
    await peer.publish("t/large", large, 1)
    await watcher.expect_publish("t/large", large, 1)
    peer.abort()
    await watcher.expect_publish("t/will", b"gone")
    await watcher.disconnect()


@SECURE
async def test_a_closed_peer_is_closed_and_aborted_again_without_harm(tls_node: TlsNode) -> None:
    """The peers of the tests, on whatever Python: a stop that breaks off leaves sockets to the next test."""
    await tls_node.start()
    peer = await tls_node.connect()
    await peer.disconnect()
    await peer.close()
    await peer.close()
    peer.abort()


@SECURE
async def test_the_reason_arrives_before_the_end(tls_node: TlsNode) -> None:
    """[MQTT-4.13.1-1]"""
    await tls_node.start()
    first = await tls_node.connect("same")
    await tls_node.connect("same")
    await first.expect_disconnect(0x8E)
    silent = await tls_node.connect(keep_alive=1)
    await tls_node.node.pass_time(2)
    await silent.expect_disconnect(0x8D)


@SECURE
async def test_an_offline_queue_over_tls(tls_node: TlsNode) -> None:
    await tls_node.start()
    properties = {c.SESSION_EXPIRY_INTERVAL: 100} if tls_node.version == 5 else {}
    peer = await tls_node.connect("p", clean_start=False, properties=properties)
    await peer.subscribe("t", qos=1)
    await peer.disconnect()
    publisher = await tls_node.connect()
    for number in range(50):
        await publisher.publish("t", b"%d" % number, 1)
    back = await tls_node.connect("p", clean_start=False, properties=properties, session_present=True)
    assert await payloads(back) == [b"%d" % number for number in range(50)]


@SECURE
async def test_plain_bytes_are_refused(tls_node: TlsNode) -> None:
    await tls_node.start()
    address = tls_node.node.address(tls_node.transport)
    peer = Peer(address._replace(transport="tcp"), tls_node.version)
    tls_node.peers.append(peer)
    await peer.open()
    await peer.send(Connect(tls_node.version, "plain"))
    data = b""
    with contextlib.suppress(Closed):
        data = await peer.stream.read()
    assert not data.startswith(b"\x20")
    await tls_node.connect()


@SECURE
async def test_a_required_client_certificate_is_the_identity(tls_node: TlsNode) -> None:
    issued = tls_node.certificates.issue("device-1")
    expired = tls_node.certificates.issue("device-2", expired=True)
    stranger_directory = tls_node.certificates.directory / "other"
    stranger_directory.mkdir()
    foreign = Certificates(stranger_directory).issue("device-1")
    revoked = tls_node.certificates.issue("device-3")
    crl = tls_node.certificates.revoke("device-3")
    await tls_node.start(
        zone={"use_username_as_client_id": True, "allow_anonymous": True},
        cafile=tls_node.certificates.ca, crlfile=crl, verify="required", peer_cert_as_username="cn",
    )  # fmt: skip
    first = await tls_node.connect("anything", issued)
    assert "device-1" in tls_node.node.server.context.channels
    await first.disconnect()
    for wrong in (None, expired, foreign, revoked):
        await tls_node.refused(wrong)
    await tls_node.connect("anything", issued)


@SECURE
async def test_an_optional_client_certificate(tls_node: TlsNode) -> None:
    issued = tls_node.certificates.issue("device-1")
    await tls_node.start(cafile=tls_node.certificates.ca, verify="optional", peer_cert_as_username="dn")
    await tls_node.connect("without")
    await tls_node.connect("with", issued)
    channels = tls_node.node.server.context.channels
    assert "CN=device-1" in str(channels["with"].client.username)
    assert channels["without"].client.username is None


@pytest.mark.parametrize("transport", ["ssl"])
async def test_several_certificates_by_server_name(tls_node: TlsNode) -> None:
    other = tls_node.certificates.issue("other.example")
    await tls_node.start(server_names={"other.example": {"certfile": other[0], "keyfile": other[1]}})
    for asked, expected in (("localhost", "localhost"), ("other.example", "other.example"), ("else", "localhost")):
        peer = tls_node.peer()
        assert peer.ssl is not None
        peer.ssl.check_hostname = False
        await peer.open(server_hostname=asked)
        shown = peer.stream.writer.get_extra_info("peercert")  # type: ignore[union-attr]
        assert ("commonName", expected) in [pair for part in shown["subject"] for pair in part]
        await peer.connect(f"asked-{asked}")


@SECURE
@pytest.mark.parametrize("version", [5])
async def test_tls_1_1_is_refused(tls_node: TlsNode) -> None:
    await tls_node.start(min_version="1.3")
    context = tls_node.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    peer = Peer(tls_node.node.address(tls_node.transport), tls_node.version, context)
    tls_node.peers.append(peer)
    with pytest.raises((ssl.SSLError, OSError, EOFError)):
        await peer.open()
    await tls_node.connect()


@SECURE
async def test_certificates_are_reloaded_without_dropping_a_client(tls_node: TlsNode) -> None:
    await tls_node.start()
    before = await tls_node.connect()
    await before.subscribe("t", qos=1)
    tls_node.certificates.issue("localhost", file="renewed")
    directory = tls_node.certificates.directory
    renewed = msgspec.convert(
        tls_node.tls(certfile=str(directory / "renewed.pem"), keyfile=str(directory / "renewed.key")),
        ListenerTlsSettings,
    )
    settings = tls_node.node.settings
    listeners = tuple(
        each if each.tls is None else msgspec.structs.replace(each, tls=renewed) for each in settings.listeners
    )
    tls_node.node.server.reload(msgspec.structs.replace(settings, listeners=listeners))
    after = await tls_node.connect()
    await after.publish("t", b"x", 1)
    await before.expect_publish("t", b"x")
    if tls_node.transport == "ssl":
        shown = [
            peer.stream.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)  # type: ignore[union-attr]
            for peer in (before, after)
        ]
        assert shown[0] != shown[1]
