"""The networks to which resources may connect: every address is checked when a socket is created for it, whatever name
it comes from.

So the check also applies to redirects, to names that resolve differently the second time, and to IPv4 addresses that
are embedded in IPv6 ones."""

import asyncio
import contextlib
import errno
import ipaddress
import socket
import ssl
from collections.abc import Iterable
from typing import Final, cast

from taipan.broker.observability.masking import mask_text

from ..params import ParamError

NOT_TRIED: Final = "not tried yet"
"""The reason of a resource that has not tried to connect yet."""
SETTING: Final = "ruleengine.refused_networks"

_ALERT: Final = 0.2
"""Seconds that a probe waits for the TLS alert of a server that refuses our certificate."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_THIS_MACHINE: Final = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))

AddrInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]]


class RefusedAddress(OSError):
    """An address in a network that the configuration refuses."""

    def __init__(self, text: str) -> None:
        # aiohttp wraps it and only shows the second argument.
        super().__init__(errno.EACCES, text)

    def __str__(self) -> str:
        return str(self.strerror)


class Networks:
    """The networks that are refused."""

    def __init__(self, refused: Iterable[str]) -> None:
        self._refused = [ipaddress.ip_network(each) for each in refused]

    def check(self, address: str) -> None:
        """Raise RefusedAddress if this IP address is in a refused network."""
        for each in _addresses(address):
            for network in self._refused:
                if each.version == network.version and each in network:
                    raise RefusedAddress(f"{address} is in {network}, refused by {SETTING}")

    def make_socket(self, info: AddrInfo) -> socket.socket:
        """Return a socket for this address: aiohttp and ``connect`` call this immediately before they connect."""
        family, kind, protocol, _, address = info
        self.check(str(address[0]))
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    async def connect(
        self,
        host: str,
        port: int,
        timeout: float,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection to the first address of ``host`` that accepts one. Raises OSError (including
        TimeoutError)."""
        async with asyncio.timeout(timeout):
            refusal: OSError | None = None
            for info in await _resolve(host, port):
                try:
                    made = await self._connected(info)
                    return await _open(made, tls, (server_hostname or host) if tls is not None else None)
                except OSError as error:
                    # A refused address is a better explanation than an unreachable one.
                    if refusal is None or isinstance(error, RefusedAddress):
                        refusal = error
            raise refusal or OSError(f"{host} has no address")

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the IP addresses of a host, for a client that creates its sockets itself. Raises OSError, also if one
        of them is refused."""
        found = [str(info[4][0]) for info in await _resolve(host, port)]
        for each in found:
            self.check(each)
        return list(dict.fromkeys(found))

    async def _connected(self, info: AddrInfo) -> socket.socket:
        """Return a connected socket for this address. Raises OSError."""
        made = self.make_socket(info)
        try:
            await asyncio.get_running_loop().sock_connect(made, info[4])
        except BaseException:
            made.close()
            raise
        return made

    async def probe(
        self,
        host: str,
        port: int,
        timeout: float,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> None:
        """Connect, complete the TLS handshake if there is one, and close. Raises OSError, including for certificates
        that one side refuses."""
        reader, writer = await self.connect(host, port, timeout, tls, server_hostname)
        try:
            if tls is not None:
                # In TLS 1.3, our part of the handshake is complete before the server has checked our certificate.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(_ALERT, timeout)):
                        await reader.read(1)
                if reader.at_eof():
                    raise ConnectionResetError("closed after the TLS handshake: a client certificate may be required")
        finally:
            writer.transport.abort()


async def _resolve(host: str, port: int) -> list[AddrInfo]:
    try:
        return list(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except UnicodeError:  # a part of the name is empty, longer than 63 characters, or invalid in IDNA
        raise OSError(f"{host} is not a hostname") from None


class _Protocol(asyncio.StreamReaderProtocol):
    """The protocol of asyncio's streams. It remembers its transport, for connections that are abandoned."""

    made: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made = cast(asyncio.Transport, transport)
        super().connection_made(transport)


async def _open(
    sock: socket.socket, tls: ssl.SSLContext | None, server_hostname: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The streams of a connected socket, after the TLS handshake if ``tls`` is given. Raises OSError.

    Only the transport closes the socket. If the socket were closed below its transport, the next connection would get
    the same descriptor, while the loop still has the transport registered for it.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = _Protocol(reader, loop=loop)
    try:
        transport, _ = await loop.create_connection(
            lambda: protocol, sock=sock, ssl=tls, server_hostname=server_hostname
        )
    except BaseException:
        if protocol.made is not None:  # cancelled at the moment it was established
            protocol.made.abort()
        raise
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def host_and_port(param: str, server: str, default_port: int) -> tuple[str, int]:
    """Return the parts of ``host:port``, ``[::1]:port`` or a host. Raises ParamError for ``param``."""
    text = server.strip()
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    host = host.strip("[]")
    right = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536
    if not right or not host or not host.isascii() or not host.isprintable() or set(" /@") & set(host):
        raise ParamError(param, "expected host:port")
    return host, int(port)


def reason_of(error: BaseException) -> str:
    """Return in one line why a connection failed."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return mask_text(str(error) or type(error).__name__).replace("\n", " ")


def _addresses(address: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the address, the IPv4 addresses embedded in an IPv6 address, and for ``0.0.0.0`` and ``::`` those of this
    machine, to which systems connect."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    addresses: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [parsed]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            addresses.append(parsed.ipv4_mapped)
        if parsed.sixtofour is not None:
            addresses.append(parsed.sixtofour)
        if parsed in _NAT64:
            addresses.append(ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF))
    if any(each.is_unspecified for each in addresses):
        addresses += _THIS_MACHINE
    return addresses
