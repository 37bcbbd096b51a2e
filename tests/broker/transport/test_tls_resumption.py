"""Sessions of TLS that are taken up again: a certificate that has expired since does not get in."""

import asyncio
import socket
import ssl
import time

import msgspec
import pytest

from taipan.broker.transport import tls_resumption
from tests.broker.transport.echo import WatchedListener, listening, on_every_transport
from tests.broker.transport.test_tls import client_context
from tests.support.certificates import Certificates

DAY = 86_400.0
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def visit(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bytes, bool, ssl.SSLSession]:
    """Say hello: what comes back (nothing: refused), whether the session was taken up, and the session."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as secure,
    ):
        try:
            secure.sendall(b"hello")
            answer = secure.recv(5)
        except OSError:
            answer = b""
        assert secure.session is not None
        return answer, bool(secure.session_reused), secure.session


async def visited(
    listener: WatchedListener, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[bytes, bool, ssl.SSLSession | None]:
    try:
        return await asyncio.to_thread(visit, listener.port, context, session)
    except OSError:
        return b"", False, None


@pytest.mark.parametrize("version", VERSIONS)
@on_every_transport
async def test_a_certificate_that_expires_between_two_visits(certificates: Certificates, version: str) -> None:
    tls = certificates.settings(verify="required", cafile=certificates.ca)
    for lasts in (3, 20):  # the longer one for a machine that takes too long for two visits
        ends = time.time() + lasts
        days = (ends - certificates.now.timestamp()) / DAY
        context = client_context(certificates, certificates.issue("brief", days=days))
        context.maximum_version = VERSIONS[version]
        async with listening(type="ssl", tls=tls) as listener:
            first, _, session = await visited(listener, context)
            # Who comes back in time takes its session up again, where TLS 1.2 has it, and is welcome.
            again, reused, _ = await visited(listener, context, session)
            if time.time() > ends - 1:
                continue
            assert (first, again, reused) == (b"hello", b"hello", version == "1.2")
            await asyncio.sleep(ends + 1 - time.time())
            answer, _, _ = await visited(listener, context, session)
            assert answer == b""
            await listener.until(lambda: listener.refused == {"tls_certificate": 1})
            assert len(listener.echoes) == 2
            return
    raise AssertionError("two visits took more than 19 seconds")


@pytest.mark.parametrize("verify", ["required", "optional"])
@on_every_transport
async def test_an_authority_that_expires_and_a_clock_that_goes_back(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, verify: str
) -> None:
    context = client_context(certificates, certificates.issue("pump-7", days=30))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    tls = certificates.settings(verify=verify, cafile=certificates.ca)
    async with listening(type="ssl", tls=tls) as listener:
        for number, days in enumerate([2, -2], start=1):  # the authority is good for a day
            _, _, session = await visited(listener, context)
            monkeypatch.setattr(
                tls_resumption.time, "time", lambda days=days: certificates.now.timestamp() + days * DAY
            )
            answer, _, _ = await visited(listener, context, session)
            monkeypatch.undo()
            assert answer == b""
            await listener.until(lambda number=number: listener.refused == {"tls_certificate": number})


@on_every_transport
async def test_a_session_without_a_certificate_is_nobodys(certificates: Certificates) -> None:
    context = client_context(certificates)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    tls = certificates.settings(verify="optional", cafile=certificates.ca)
    async with listening(type="ssl", tls=tls) as listener:
        _, _, session = await visited(listener, context)
        answer, reused, _ = await visited(listener, context, session)
        assert (answer, reused) == (b"hello", True)


@on_every_transport
async def test_a_reload_ends_all_sessions(certificates: Certificates) -> None:
    context = client_context(certificates, certificates.issue("stolen"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    tls = certificates.settings(verify="required", cafile=certificates.ca)
    async with listening(type="ssl", tls=tls) as listener:
        _, _, session = await visited(listener, context)
        revoked = certificates.settings(
            verify="required", cafile=certificates.ca, crlfile=certificates.revoke("stolen")
        )
        listener.reload(msgspec.structs.replace(listener.settings, tls=revoked), listener.zone)
        answer, _, _ = await visited(listener, context, session)
        assert answer == b""
        await listener.until(lambda: listener.refused == {"tls_certificate": 1})


@on_every_transport
async def test_a_session_that_nobody_asked_for_a_certificate_is_as_it_was(certificates: Certificates) -> None:
    context = client_context(certificates)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with listening(type="ssl", tls=certificates.settings()) as listener:
        _, _, session = await visited(listener, context)
        answer, reused, _ = await visited(listener, context, session)
        assert (answer, reused) == (b"hello", True)
