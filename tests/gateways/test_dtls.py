"""DTLS: the cookie before any state, certificates of both sides, and the ends of sessions, with CoAP above it."""

import asyncio
import shutil
from typing import Any

import pytest

from taipan.broker.config import ListenerTlsSettings
from taipan.broker.gateway import kind_of
from taipan.broker.gateways.coap import codec
from taipan.broker.transport import dtls
from taipan.broker.transport.tls import TlsError
from tests.gateways.dtls_client import PROGRAMS, SecureClient, listener_of
from tests.support.api import managed_node
from tests.support.certificates import Certificates
from tests.support.patience import patience
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(90)]


def start(certificates: Certificates, kind: str = "coaps", **tls: Any) -> Any:
    assert kind_of(kind) is not None
    certfile, keyfile = certificates.issue("localhost")
    table = {"certfile": certfile, "keyfile": keyfile, **tls}
    return managed_node(listeners=[{"type": "tcp"}, {"type": kind, "name": "secure", "tls": table}])


@pytest.mark.parametrize("program", PROGRAMS)
async def test_coap_client(certificates: Certificates, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing: apt install libcoap3-bin")
    async with start(certificates) as node:
        peer = await node.client("m")
        await peer.subscribe("t", qos=1)
        uri = f"coaps://127.0.0.1:{listener_of(node).port}/mqtt/t?c=dev"
        process = await asyncio.create_subprocess_exec(program, "-m", "put", "-e", "x", uri)
        await peer.expect_publish("t", b"x", 1)
        async with asyncio.timeout(patience(40)):
            await process.wait()
        rows = {each["identifier"]: each for each in (await node.api.get(f"/nodes/{node.name}/listeners")).data}
        assert rows["coap:dtls:secure"]["protocol"] == "coap:dtls"


async def test_an_address_without_its_cookie_has_no_state(certificates: Certificates) -> None:
    async with start(certificates) as node:
        listener = listener_of(node)
        client = await SecureClient.open(node)
        client.transport.sendto(b"\x40\x01\x00\x01")  # CoAP without DTLS
        client.loses = {0}
        client.handshake()
        await until(lambda: client.count == 1)
        assert not listener._datagrams._handshakes._of and not listener._datagrams._peers
        assert listener.refused == {"malformed_datagram": 1}
        client.transport.sendto(client.sent[0])
        await until(lambda: len(client.sent) > 1)
        assert sum(map(len, client.raw[:1])) <= len(client.sent[0])  # the request for the cookie
        await client.connect()
        assert await client.put("mqtt/t?c=dev", b"x") == "2.04"
        client.transport.sendto(client.sent[-1])  # a repeated record is not a message
        assert await client.put("mqtt/t?c=dev", b"y") == "2.04"
        client.close()


async def test_lost_flights_and_another_handshake(certificates: Certificates) -> None:
    """The node repeats its flight; a client that has restarted takes its address over with a new handshake."""
    async with start(certificates) as node:
        client = await SecureClient.open(node)
        client.loses = {1}
        await client.connect()
        assert await client.put("mqtt/t?c=dev", b"x") == "2.04"
        client.transport.sendto(client.sent[1])  # an old ClientHello with its cookie, which anyone may repeat
        assert await client.put("mqtt/t?c=dev", b"y") == "2.04"
        again = SecureClient()
        again.transport = client.transport
        client.datagram_received = again.datagram_received  # type: ignore[method-assign]
        await again.connect()
        assert await again.put("mqtt/t?c=dev", b"x") == "2.04"
        client.close()


async def test_the_end_of_a_session(certificates: Certificates) -> None:
    async with start(certificates) as node:
        client = await SecureClient.open(node)
        await client.connect()
        assert await client.put("mqtt/t?c=dev", b"x") == "2.04"
        assert (await node.api.delete("/clients/dev")).status == 200
        async with asyncio.timeout(patience(20)):
            await client.failed.wait()  # its alert
        other = await SecureClient.open(node)
        await other.connect()
        assert await other.put("mqtt/t?c=dev", b"x") == "2.04"
        other.connection.shutdown()
        other.flush()
        await until(lambda: node.server.broker.sessions.get("dev") is None)
        client.close()
        other.close()


async def test_client_certificates(certificates: Certificates) -> None:
    tls = {"verify": "required", "cafile": certificates.ca, "peer_cert_as_username": "cn"}
    async with start(certificates, **tls) as node:
        without = await SecureClient.open(node)
        without.handshake()
        async with asyncio.timeout(patience(20)):
            await without.failed.wait()
        await until(lambda: listener_of(node).refused.get("tls_handshake") == 1)
        client = await SecureClient.open(node, certificates.issue("pump-7"))
        await client.connect()
        assert await client.put("mqtt/t?c=dev", b"x") == "2.04"
        [row] = (await node.api.get("/clients/dev")).data
        assert row["username"] == "pump-7"
        without.close()
        client.close()


async def test_settings_that_cannot_be(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    certfile, keyfile = certificates.issue("localhost")
    files = {"certfile": certfile, "keyfile": keyfile}
    for table, setting in (
        ({**files, "crlfile": "x"}, "tls.crlfile"),
        ({**files, "min_version": "1.3"}, "tls.min_version"),
        ({**files, "server_names": {"x": files}}, "tls.server_names"),
        ({**files, "ciphers": "NONE"}, "tls: DTLS"),
    ):
        with pytest.raises(TlsError, match=setting):
            dtls.DtlsContext(ListenerTlsSettings(**table))

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(dtls.importlib, "import_module", missing)
    with pytest.raises(TlsError, match=r"pip install .taipan-mqtt\[dtls\]"):
        dtls.DtlsContext(ListenerTlsSettings(**files))


async def test_another_client_in_a_session(certificates: Certificates) -> None:
    async with start(certificates) as node:
        client = await SecureClient.open(node)
        await client.connect()
        assert await client.put("mqtt/t?c=dev", b"x") == "2.04"
        assert await client.put("mqtt/t?c=other", b"x") == "2.04"
        assert node.server.broker.sessions.get("dev") is None
        assert not client.failed.is_set()
        await listener_of(node).stop()  # known clients go on, others are not accepted
        assert await client.put("mqtt/t?c=other", b"y") == "2.04"
        await client.send("mqtt/t?c=third", b"x")
        async with asyncio.timeout(patience(20)):
            await client.failed.wait()
        assert node.server.broker.sessions.get("third") is None
        client.close()


async def test_a_request_of_another_session_is_no_repetition(certificates: Certificates) -> None:
    """A device that restarts counts its messages from the beginning again (RFC 7252, section 9.1)."""
    async with start(certificates) as node:
        peer = await node.client("m")
        await peer.subscribe("t", qos=1)
        client = await SecureClient.open(node)
        await client.connect()
        assert await client.put("mqtt/t?c=dev", b"x", mid=1) == "2.04"
        again = SecureClient()
        again.transport = client.transport
        client.datagram_received = again.datagram_received  # type: ignore[method-assign]
        await again.connect()
        assert await again.put("mqtt/t?c=dev", b"x", mid=1) == "2.04"
        for _ in range(2):
            await peer.expect_publish("t", b"x", 1)
        client.close()


async def test_lwm2m(certificates: Certificates) -> None:
    """A device registers and answers a command; its certificate is its username."""
    tls = {"verify": "required", "cafile": certificates.ca, "peer_cert_as_username": "cn"}
    async with start(certificates, "lwm2ms", **tls) as node:
        peer = await node.client("m")
        await peer.subscribe("lwm2m/pump-7/up/#", qos=0)
        device = await SecureClient.open(node, certificates.issue("pump-7"))
        await device.connect()
        await device.send("rd?ep=pump-7&lt=300&lwm2m=1.0", b"</3/0>", code=codec.POST)
        async with asyncio.timeout(patience(20)):
            assert (await device.inbox.get()).code == codec.CREATED
            await peer.expect_publish("lwm2m/pump-7/up/resp")
            await peer.publish("lwm2m/pump-7/dn/1", b'{"reqID":1,"msgType":"read","data":{"path":"/3/0/9"}}')
            asked = await device.inbox.get()
            assert [value for number, value in asked.options if number == codec.URI_PATH] == [b"3", b"0", b"9"]
            device.connection.send(codec.encode(codec.ACK, codec.CONTENT, asked.mid, asked.token, payload=b"87"))
            device.flush()
            assert b'"value":87' in (await peer.expect_publish("lwm2m/pump-7/up/resp")).payload
        [row] = (await node.api.get("/clients/pump-7")).data
        assert (row["username"], row["proto_name"]) == ("pump-7", "LwM2M")
        [known] = (await node.api.get("/lwm2m_channels")).data
        assert known["imei"] == "pump-7"
        device.close()
