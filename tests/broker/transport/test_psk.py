"""Listeners with pre-shared keys: who comes in, why others do not, and what is said about files that do not fit."""

import logging
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.config import ZoneSettings
from taipan.broker.transport.psk import UNAVAILABLE, read_psk_file, unavailable
from taipan.broker.transport.tls import ServerContext, TlsError, build_context, handshake_refusal, peer_identity
from tests.broker.transport.echo import closed_by_peer, dial, listener_settings, listening, on_every_transport
from tests.support.psk import KEY, OTHER_KEY, PskClient, PskFile, needs_psk, psk_works

__all__ = ["psk_works"]


@pytest.fixture
def file(tmp_path: Path) -> PskFile:
    return PskFile(tmp_path)


async def comes_in(port: int, client: PskClient) -> None:
    async with dial(port, ssl=client.context) as (reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"


async def refusal(port: int, client: PskClient) -> str:
    """What the client hears."""
    try:
        async with dial(port, ssl=client.context) as (reader, _):
            await closed_by_peer(reader)
    except ssl.SSLError as error:
        return str(error.reason)
    except OSError as error:
        return type(error).__name__
    return ""


@needs_psk
@on_every_transport
async def test_the_identity_is_known_after_the_handshake(file: PskFile) -> None:
    async with listening(type="ssl", tls=file.settings(psk_hint="plant 4")) as listener:
        client = PskClient("pump-7")
        await comes_in(listener.port, client)
        assert client.hints == ["plant 4"]
        echo = listener.echoes[0]
        assert echo.identity == ("pump-7", None)
        assert echo.tls_version == "TLSv1.2" and echo.cipher[0].startswith("ECDHE-PSK")
        await comes_in(listener.port, PskClient("pump-7", ciphers="PSK-AES128-GCM-SHA256"))
        assert listener.refused == {}


@needs_psk
@on_every_transport
async def test_a_device_that_only_has_the_shortest_tag(file: PskFile) -> None:
    """OpenSSL 3.5 refuses it at its default level."""
    ciphers = "PSK-AES128-CCM8:@SECLEVEL=0"
    async with listening(type="ssl", tls=file.settings(ciphers=ciphers)) as listener:
        await comes_in(listener.port, PskClient("pump-7", ciphers=ciphers))


@needs_psk
@on_every_transport
async def test_wrong_keys_and_unknown_identities_are_refused_alike(
    file: PskFile, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with listening(type="ssl", tls=file.settings()) as listener:
        heard = set()
        for number, (identity, key) in enumerate([("pump-7", OTHER_KEY), ("pump-8", KEY), ("", KEY)], 1):
            heard.add(await refusal(listener.port, PskClient(identity, key)))
            await listener.until(lambda number=number: listener.refused == {"tls_psk": number})
            listener.clock.advance(60)
        assert len(heard) == 1
        lines = [each.getMessage() for each in caplog.records if "reason=tls_psk" in each.getMessage()]
        for line, detail in zip(
            lines, ("wrong key for identity 'pump-7'", "unknown identity 'pump-8'", "unknown identity ''"), strict=True
        ):
            assert "setting=tls.psk_file" in line and line.endswith(f"detail={detail}")
        await comes_in(listener.port, PskClient("pump-7"))


@needs_psk
@on_every_transport
async def test_clients_that_speak_no_psk(file: PskFile) -> None:
    """Neither TLS 1.3, nor certificates, nor ciphers that prove nothing, even if the setting names them."""
    async with listening(type="ssl", tls=file.settings(ciphers="ALL:COMPLEMENTOFALL:@SECLEVEL=0")) as listener:
        for number, ciphers in enumerate(["ECDHE+AESGCM", "aNULL:@SECLEVEL=0", "eNULL:@SECLEVEL=0"], 1):
            await refusal(listener.port, PskClient("pump-7", ciphers=ciphers))
            await listener.until(lambda number=number: listener.refused == {"tls_handshake": number})
        newer = PskClient("pump-7")
        newer.context.maximum_version = newer.context.minimum_version = ssl.TLSVersion.TLSv1_3
        await refusal(listener.port, newer)
        await listener.until(lambda: listener.refused == {"tls_handshake": 4})


@needs_psk
@on_every_transport
async def test_a_reload_reads_the_file_again(file: PskFile) -> None:
    async with (
        listening(type="ssl", tls=file.settings()) as listener,
        dial(listener.port, ssl=PskClient("pump-7").context) as (reader, writer),
    ):
        file.write({"pump-8": OTHER_KEY})
        await comes_in(listener.port, PskClient("pump-7"))
        listener.reload(listener_settings(type="ssl", tls=file.settings()), ZoneSettings())
        await refusal(listener.port, PskClient("pump-7"))
        await comes_in(listener.port, PskClient("pump-8", OTHER_KEY))
        writer.write(b"still")
        assert await reader.readexactly(5) == b"still"
        file.path.write_text("pump-8\n")
        with pytest.raises(TlsError, match=r"line 1: expected identity:key"):
            listener.reload(listener_settings(type="ssl", tls=file.settings()), ZoneSettings())
        await comes_in(listener.port, PskClient("pump-8", OTHER_KEY))


class Wire:
    """A handshake in memory, whose messages a test may change on their way."""

    def __init__(self, server: ssl.SSLContext, client: PskClient, session: ssl.SSLSession | None = None) -> None:
        self.bios = [ssl.MemoryBIO() for _ in range(4)]
        self.server = server.wrap_bio(self.bios[0], self.bios[1], server_side=True)
        self.client = client.context.wrap_bio(self.bios[2], self.bios[3], session=session)

    def run(self, change: Any = lambda flight: flight) -> None:
        """Raises what the server raises."""
        for _ in range(4):
            for end, goes, comes in ((self.client, 3, 0), (self.server, 1, 2)):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    pass
                flight = self.bios[goes].read()
                if flight:
                    self.bios[comes].write(change(flight) if end is self.client else flight)


def identity_in(flight: bytes, identity: bytes) -> bytes:
    """The ClientKeyExchange of a plain PSK cipher, with another identity."""
    if flight[5] != 0x10:
        return flight
    rest = flight[5 + int.from_bytes(flight[3:5], "big") :]
    body = len(identity).to_bytes(2, "big") + identity
    message = b"\x10" + len(body).to_bytes(3, "big") + body
    return flight[:3] + len(message).to_bytes(2, "big") + message + rest


@needs_psk
@pytest.mark.parametrize(
    "identity, detail",
    [
        (b"pump-\xff\xfe", "the identity is not UTF-8"),
        (b"x" * 257, "the identity is too long"),
        (b"a\nb", "unknown identity 'a\\nb'"),
        (b"pump-7\0x", "wrong key for identity 'pump-7'"),
    ],
    ids=["utf-8", "257", "newline", "nul"],
)
def test_identities_that_cannot_be(file: PskFile, identity: bytes, detail: str) -> None:
    context = build_context(file.settings())
    wire = Wire(context, PskClient("pump-7", ciphers="PSK-AES128-GCM-SHA256"))
    with pytest.raises(ssl.SSLError) as raised:
        wire.run(lambda flight: identity_in(flight, identity))
    assert handshake_refusal(raised.value) == ("tls_psk", "tls.psk_file", detail)
    Wire(context, PskClient("pump-7")).run()  # the next one notices nothing


@needs_psk
def test_a_resumed_session_keeps_its_identity(file: PskFile) -> None:
    context = build_context(file.settings())
    client = PskClient("pump-7")
    first = Wire(context, client)
    first.run()
    assert first.server.psk_identity == "pump-7" and not first.client.session.has_ticket
    again = Wire(context, client, first.client.session)
    again.run()
    assert again.server.session_reused and peer_identity(again.server) == ("pump-7", None)
    assert isinstance(context, ServerContext) and context.keys is not None
    context.keys._sessions.clear()
    with pytest.raises(ssl.SSLError) as raised:
        Wire(context, client, first.client.session).run()
    assert handshake_refusal(raised.value) == ("tls_psk", "tls.psk_file", "the client has proved no identity")
    # A reload ends all sessions: who is not in the file any more comes in by none.
    file.write({"pump-8": KEY})
    with pytest.raises(ssl.SSLError) as raised:
        Wire(build_context(file.settings()), client, first.client.session).run()
    assert handshake_refusal(raised.value)[2] == "unknown identity 'pump-7'"


@needs_psk
def test_sessions_are_remembered_up_to_a_limit(file: PskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taipan.broker.transport.psk._MOST_SESSIONS", 3)
    context = build_context(file.settings())
    assert isinstance(context, ServerContext) and context.keys is not None
    for _ in range(5):
        Wire(context, PskClient("pump-7")).run()
    assert len(context.keys._sessions) == 3


def test_the_file(file: PskFile) -> None:
    assert read_psk_file(str(file.path)) == {"pump-7": KEY}
    file.path.write_text("# comment\n\npump-7:00FFab\r\n  a b:01\né:02\n")
    assert read_psk_file(str(file.path)) == {"pump-7": b"\0\xff\xab", "a b": b"\1", "é": b"\2"}
    file.path.write_text("")
    assert read_psk_file(str(file.path)) == {}  # whoever removes the last device must be able to


@pytest.mark.parametrize(
    "text, why",
    [
        (b"pump-7\n", "line 1: expected identity:key"),
        (b"\n:aa\n", "line 2: the identity is empty"),
        (b"a\tb:aa", "line 1: the identity is empty or has unprintable characters"),
        (b"x" * 257 + b":aa", "line 1: the identity is longer than 256 bytes"),
        (b"\xff:aa", "line 1: the identity is not UTF-8"),
        (b"a:", "line 1: expected a key of 1 to 256 bytes"),
        (b"a:" + b"aa" * 257, "line 1: expected a key of 1 to 256 bytes"),
        (b"a:5ecre7", "line 1: the key is not an even number of hexadecimal digits"),
        (b"a:abc", "line 1: the key is not an even number of hexadecimal digits"),
        (b"a:aa\nb:bb\na:cc", "line 3: the identity occurs twice"),
    ],
)
def test_a_file_that_does_not_fit(file: PskFile, text: bytes, why: str) -> None:
    file.path.write_bytes(text)
    with pytest.raises(ValueError) as raised:
        read_psk_file(str(file.path))
    assert str(raised.value).startswith(why) and "5ecre7" not in str(raised.value)


def test_a_file_that_all_users_may_read(file: PskFile) -> None:
    file.path.chmod(0o644)
    with pytest.raises(ValueError, match=r"all users may access it \(mode 0644\): chmod 640"):
        read_psk_file(str(file.path))


@needs_psk
@pytest.mark.parametrize(
    "keys, text",
    [
        ({"psk_file": "/nowhere/psk"}, "tls.psk_file: cannot read '/nowhere/psk': No such file or directory"),
        ({"psk_file": "/dev/zero"}, "tls.psk_file: cannot read '/dev/zero': not a regular file"),
        ({"ciphers": "ECDHE+AESGCM"}, "tls.ciphers: OpenSSL supports no cipher for pre-shared keys"),
        ({"ciphers": "nonsense"}, "tls.ciphers: OpenSSL supports no cipher for pre-shared keys"),
        ({"certfile": "a.pem"}, "tls.certfile: has no effect with psk_file"),
        ({"min_version": "1.3"}, "tls.min_version: pre-shared keys work with TLS 1.2 only"),
    ],
)
def test_settings_that_do_not_fit(file: PskFile, keys: dict[str, Any], text: str) -> None:
    with pytest.raises(TlsError) as raised:
        build_context(file.settings(**keys))
    assert str(raised.value).startswith(text)


def test_faults_of_settings(file: PskFile) -> None:
    assert list(file.settings(psk_identity_as_username=True, psk_hint="h").psk_faults()) == []
    for keys in (
        {"keyfile": "a"}, {"key_password": "a"}, {"cafile": "a"}, {"crlfile": "a"}, {"verify": "required"},
        {"server_names": {"a": {}}}, {"peer_cert_as_username": "cn"}, {"psk_hint": "x" * 129},
        {"psk_file": "", "psk_hint": "h"}, {"psk_file": "", "psk_identity_as_username": True},
    ):  # fmt: skip
        assert [key for key, _ in file.settings(**keys).psk_faults()] == [list(keys)[-1]]


def test_a_python_without_psk(file: PskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info >= (3, 13):
        monkeypatch.setattr(ssl, "HAS_PSK", False)
        expected = "the OpenSSL of this Python has no pre-shared keys"
    else:
        monkeypatch.setattr("taipan.broker.transport.psk._sslpsk3", None)
        monkeypatch.setitem(sys.modules, "sslpsk3", None)
        expected = UNAVAILABLE
    assert unavailable() == expected
    with pytest.raises(TlsError) as raised:
        build_context(file.settings())
    assert str(raised.value) == f"tls.psk_file: {expected}"
