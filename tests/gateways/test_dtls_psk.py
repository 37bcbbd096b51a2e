"""DTLS with pre-shared keys: independent clients, who is refused and why, and a reload of the keys."""

import asyncio
import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.gateway import kind_of
from taipan.broker.gateways.coap import codec
from taipan.broker.transport import dtls, dtls_psk
from taipan.broker.transport.tls import TlsError
from tests.gateways.dtls_client import PROGRAMS, SecureClient, listener_of
from tests.support.api import ManagedNode, managed_node
from tests.support.patience import patience
from tests.support.psk import KEY, OTHER_KEY, PskFile
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(90)]

MANDATORY = "PSK-AES128-CCM8:@SECLEVEL=0"
"""TLS_PSK_WITH_AES_128_CCM_8, the cipher that RFC 7252, section 9.1.3.1, requires."""
TEXT_KEY = "secretPSK"


@pytest.fixture
def file(tmp_path: Path) -> PskFile:
    return PskFile(tmp_path)


def start(file: PskFile, kind: str = "coaps", **tls: Any) -> Any:
    assert kind_of(kind) is not None
    table = {"psk_file": str(file.path), "psk_identity_as_username": True, **tls}
    return managed_node(listeners=[{"type": "tcp"}, {"type": kind, "name": "secure", "tls": table}])


async def username_of(node: ManagedNode, client_id: str) -> str:
    [row] = (await node.api.get(f"/clients/{client_id}")).data
    return str(row["username"])


async def open_client(node: ManagedNode, identity: str, key: bytes = KEY, ciphers: str = "PSK") -> SecureClient:
    return await SecureClient.open(node, psk=(identity, key), ciphers=ciphers)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_coap_client(file: PskFile, program: str) -> None:
    """libcoap's clients publish and observe with a key; the identity is the username."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing: apt install libcoap3-bin")
    file.write({"sensor7": TEXT_KEY.encode()})
    async with start(file) as node:
        peer = await node.client("m")
        await peer.subscribe("t", qos=1)
        base = [program, "-u", "sensor7", "-k", TEXT_KEY]
        uri = f"coaps://127.0.0.1:{listener_of(node).port}/mqtt"
        process = await asyncio.create_subprocess_exec(*base, "-m", "put", "-e", "x", f"{uri}/t?c=dev")
        await peer.expect_publish("t", b"x", 1)
        async with asyncio.timeout(patience(40)):
            await process.wait()
        observer = await asyncio.create_subprocess_exec(
            *base, "-s", "60", "-m", "get", f"{uri}/valve?c=valve1", stdout=asyncio.subprocess.PIPE
        )
        try:
            await until(lambda: bool(node.server.broker.sessions.get("valve1")))
            session = node.server.broker.sessions.get("valve1")
            assert session is not None
            await until(lambda: bool(session.subscriptions))
            assert await username_of(node, "valve1") == "sensor7"
            await peer.publish("valve", b"open")
            assert observer.stdout is not None
            async with asyncio.timeout(patience(40)):
                assert await observer.stdout.readexactly(4) == b"open"
        finally:
            observer.terminate()
            await observer.wait()
        assert listener_of(node).refused == {}


async def test_ciphers_hint_and_cookie(file: PskFile) -> None:
    async with start(file, psk_hint="plant 4") as node:
        listener = listener_of(node)
        for ciphers in ("ECDHE-PSK-AES128-CBC-SHA256", "PSK-AES128-GCM-SHA256", MANDATORY):
            client = await open_client(node, "pump-7", ciphers=ciphers)
            client.loses = {0}
            client.handshake()
            await until(lambda client=client: client.count == 1)  # type: ignore[misc]
            assert not listener._datagrams._handshakes._of  # nothing is kept before the cookie
            client.transport.sendto(client.sent[0])
            await client.connect()
            assert await client.put("mqtt/t?c=dev", b"x") == "2.04"
            assert client.hints == ["plant 4"]
            client.close()
        assert await username_of(node, "dev") == "pump-7"


async def test_who_is_refused(file: PskFile, caplog: pytest.LogCaptureFixture) -> None:
    """An unknown identity and a wrong key look the same: neither is answered. The log distinguishes them."""
    async with start(file, handshake_timeout=1.0) as node:
        listener = listener_of(node)
        for number, (identity, key) in enumerate((("pump-7", OTHER_KEY), ("pump-8", KEY)), 1):
            client = await open_client(node, identity, key)
            client.handshake()
            await until(lambda number=number: listener.refused.get("tls_psk") == number)  # type: ignore[misc]
            assert listener.refused == {"tls_psk": number} and not listener._datagrams._handshakes._of
            assert not client.done.is_set() and not client.failed.is_set()
            client.close()
        assert "wrong key for identity 'pump-7'" in caplog.text


async def test_an_identity_that_is_not_utf8(file: PskFile) -> None:
    async with start(file) as node:
        client = await SecureClient.open(node, psk=(b"\xff", KEY))
        client.handshake()
        async with asyncio.timeout(patience(20)):
            await client.failed.wait()
        assert listener_of(node).refused == {"tls_psk": 1}
        client.close()


async def test_a_device_that_begins_again_with_another_key(file: PskFile) -> None:
    """The handshake that it has given up is counted, although its time-out has not come."""
    async with start(file) as node:
        listener = listener_of(node)
        client = await open_client(node, "pump-7", OTHER_KEY)
        client.handshake()
        await until(lambda: any(each.session.wrong_key() for each in listener._datagrams._handshakes._of.values()))
        again = SecureClient(psk=("pump-7", KEY))
        again.transport = client.transport
        client.datagram_received = again.datagram_received  # type: ignore[method-assign]
        await again.connect()
        assert listener.refused == {"tls_psk": 1}
        client.close()


async def test_a_handshake_without_a_wrong_key_has_its_own_reason(file: PskFile) -> None:
    async with start(file, handshake_timeout=0.5) as node:
        listener = listener_of(node)
        client = await open_client(node, "pump-7")
        client.loses = set(range(1, 99))  # it stops after its cookie
        client.handshake()
        await until(lambda: bool(listener.refused))
        assert listener.refused == {"tls_timeout": 1}
        client.close()


async def test_a_certificate_client_finds_no_cipher(file: PskFile) -> None:
    async with start(file) as node:
        client = await SecureClient.open(node)
        client.handshake()
        async with asyncio.timeout(patience(20)):
            await client.failed.wait()
        assert listener_of(node).refused == {"tls_handshake": 1}
        client.close()


async def test_a_reload_reads_the_keys_again(file: PskFile) -> None:
    """Sessions and handshakes of before go on, with the callback of their context."""
    async with start(file) as node:
        listener = listener_of(node)
        before = await open_client(node, "pump-7")
        await before.connect()
        halfway = await open_client(node, "pump-7")
        halfway.loses = {1}
        halfway.handshake()
        await until(lambda: halfway.count >= 2)
        file.write({"pump-9": OTHER_KEY})
        listener.reload(listener.settings, listener.zone)
        assert await before.put("mqtt/t?c=dev", b"x") == "2.04"
        await halfway.connect()
        after = await open_client(node, "pump-9", OTHER_KEY)
        await after.connect()
        assert await after.put("mqtt/t?c=other", b"x") == "2.04"
        for each in (before, halfway, after):
            each.close()


async def test_an_identity_is_a_proved_name(file: PskFile) -> None:
    """Without psk_identity_as_username, it is no username; a device may not name another than its own."""
    async with start(file, psk_identity_as_username=False) as node:
        client = await open_client(node, "pump-7")
        await client.connect()
        assert await client.put("mqtt/t?c=dev&u=someone&p=x", b"x") == "2.04"
        assert await username_of(node, "dev") == "someone"
        client.close()
    async with start(file) as node:
        client = await open_client(node, "pump-7")
        await client.connect()
        assert await client.put("mqtt/t?c=dev&u=someone&p=x", b"x") == "2.04"
        assert await username_of(node, "dev") == "pump-7"
        client.close()


async def test_lwm2m(file: PskFile) -> None:
    """A device registers and answers a command with the mandatory cipher."""
    async with start(file, "lwm2ms") as node:
        peer = await node.client("m")
        await peer.subscribe("lwm2m/pump-7/up/#", qos=0)
        device = await open_client(node, "pump-7", ciphers=MANDATORY)
        await device.connect()
        await device.send("rd?ep=pump-7&lt=300&lwm2m=1.0", b"</3/0>", code=codec.POST)
        async with asyncio.timeout(patience(20)):
            assert (await device.inbox.get()).code == codec.CREATED
            await peer.expect_publish("lwm2m/pump-7/up/resp")
            await peer.publish("lwm2m/pump-7/dn/1", b'{"reqID":1,"msgType":"read","data":{"path":"/3/0/9"}}')
            asked = await device.inbox.get()
            device.connection.send(codec.encode(codec.ACK, codec.CONTENT, asked.mid, asked.token, payload=b"87"))
            device.flush()
            assert b'"value":87' in (await peer.expect_publish("lwm2m/pump-7/up/resp")).payload
        assert await username_of(node, "pump-7") == "pump-7"
        device.close()


async def test_settings_that_cannot_be(file: PskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    for table, setting in (
        ({"psk_file": "/none"}, "tls.psk_file.*cannot read"),
        ({"certfile": "x"}, "tls.certfile.*has no effect with psk_file"),
        ({"verify": "required"}, "tls.verify"),
        ({"ciphers": "NONE"}, "tls.ciphers.*pre-shared keys"),
        ({"ciphers": "ECDHE-RSA-AES128-GCM-SHA256"}, "tls.ciphers.*pre-shared keys"),
        ({"min_version": "1.3"}, "tls.min_version"),
    ):
        with pytest.raises(TlsError, match=setting):
            dtls.DtlsContext(file.settings(**table))
    openssl = importlib.import_module("OpenSSL.SSL")
    monkeypatch.delattr(openssl, "_lib")
    with pytest.raises(TlsError, match=r"pre-shared keys"):
        dtls_psk.install(object(), None, "")  # type: ignore[arg-type]
