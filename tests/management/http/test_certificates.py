"""Certificates: a reload takes new files for the handshakes to come, and none that cannot be used."""

import asyncio
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.config import TlsSettings
from taipan.broker.transport.tls import TlsError
from taipan.management.http.certificates import Certificates as Served
from tests.support.api import ManagedNode, managed_node
from tests.support.certificates import Certificates

pytestmark = pytest.mark.asyncio


async def serial_of(node: ManagedNode, ca: str, server_name: str | None = "localhost") -> str:
    """Of the certificate that the management server shows."""
    port = int(node.management.url.rpartition(":")[2])
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = server_name is not None
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=server_name or "")
    shown: Any = writer.get_extra_info("peercert")
    writer.close()
    return str(shown["serialNumber"])


@pytest.mark.parametrize("server_name", ["localhost", None], ids=["named", "nameless"])
async def test_reload(tmp_path: Path, server_name: str | None) -> None:
    issuer = Certificates(tmp_path)
    certfile, keyfile = tmp_path / "api.pem", tmp_path / "api.key"

    def renew() -> None:
        issued = issuer.issue("localhost")
        shutil.copy(issued[0], certfile)
        shutil.copy(issued[1], keyfile)

    renew()
    async with managed_node(management={"tls": {"certfile": str(certfile), "keyfile": str(keyfile)}}) as node:
        management = node.management
        first = await serial_of(node, issuer.ca, server_name)
        certfile.write_text("nothing")
        with pytest.raises(TlsError, match=r"^management\.tls\.certfile: "):
            management.check(management.settings, management.history.settings)
        assert await serial_of(node, issuer.ca, server_name) == first
        renew()
        management.check(management.settings, management.history.settings)
        assert await serial_of(node, issuer.ca, server_name) == first
        management.reload(management.settings)
        assert await serial_of(node, issuer.ca, server_name) != first


async def test_a_reload_ends_sessions_that_began_before(tmp_path: Path) -> None:
    issuer = Certificates(tmp_path)
    certfile, keyfile = issuer.issue("localhost")
    context = ssl.create_default_context(cafile=issuer.ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def visit(port: int, session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession | None]:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as secure,
        ):
            return bool(secure.session_reused), secure.session

    async with managed_node(management={"tls": {"certfile": certfile, "keyfile": keyfile}}) as node:
        management = node.management
        port = int(management.url.rpartition(":")[2])
        _, session = await asyncio.to_thread(visit, port, None)
        assert (await asyncio.to_thread(visit, port, session))[0]
        management.check(management.settings, management.history.settings)
        management.reload(management.settings)
        assert not (await asyncio.to_thread(visit, port, session))[0]


async def test_a_start_names_the_setting(tmp_path: Path) -> None:
    absent = TlsSettings(certfile=str(tmp_path / "absent.pem"), keyfile=str(tmp_path / "absent.key"))
    with pytest.raises(TlsError, match=r"^management\.tls\.certfile: cannot read"):
        Served("management", absent)
