"""Behind a load balancer: the PROXY protocol tells who the client is."""

import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from tests.support.clients import Clients
from tests.support.peer import Closed, Peer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(30)]

Start = Callable[..., Awaitable[Clients]]

LISTENERS = [
    {"type": "tcp", "proxy_protocol": True, "proxy_protocol_timeout": 40.0},
    {"type": "ws", "proxy_protocol": True, "proxy_protocol_timeout": 40.0},
]
ANYBODY = {"allow_anonymous": True}
RULES = [{"allow": True, "address": "203.0.113.0/24"}, {"allow": True, "address": "2001:db8::/32"}, {"allow": False}]
V2 = b"\r\n\r\n\x00\r\nQUIT\n"


def v2(command: int, family: int, block: bytes) -> bytes:
    return V2 + bytes([0x20 | command, family]) + struct.pack("!H", len(block)) + block


def ipv4(source: str) -> bytes:
    return socket.inet_aton(source) + socket.inet_aton("198.51.100.1") + struct.pack("!HH", 4711, 1883)


def ipv6(source: str) -> bytes:
    addresses = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    return addresses + struct.pack("!HH", 4711, 1883)


HEADERS = {
    "v1 TCP4": (b"PROXY TCP4 203.0.113.7 198.51.100.1 4711 1883\r\n", "203.0.113.7"),
    "v1 TCP6": (b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 1883\r\n", "2001:db8::7"),
    "v2 TCP4": (v2(1, 0x11, ipv4("203.0.113.7")), "203.0.113.7"),
    "v2 TCP6": (v2(1, 0x21, ipv6("2001:db8::7")), "2001:db8::7"),
    "v2 with TLVs": (v2(1, 0x11, ipv4("203.0.113.7") + b"\x02\x00\x04name\x04\x00\x02xx"), "203.0.113.7"),
}
LOCAL = {
    "v1 UNKNOWN": b"PROXY UNKNOWN\r\n",
    "v2 LOCAL": v2(0, 0x00, b""),
}
BAD = {
    "no header": b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
    "v1 without end": b"PROXY TCP4 " + b"1" * 200,
    "v1 address": b"PROXY TCP4 999.0.0.1 198.51.100.1 4711 1883\r\n",
    "v2 version": V2 + b"\x11\x11\x00\x0c" + bytes(12),
    "v2 too long": V2 + b"\x21\x11\xff\xff" + bytes(100),
}


async def proxied(clients: Clients, header: bytes) -> Peer:
    """A peer whose connection begins with ``header``: opened by hand, since the header comes before everything."""
    host, port, *_ = clients.node.address(clients.transport)
    sock = socket.create_connection((host, port))
    sock.sendall(header)
    sock.setblocking(False)
    peer = clients.peer()
    if clients.transport == "ws":
        return await peer.open(sock=sock)
    peer.address = peer.address._replace(host=None, port=None)  # type: ignore[arg-type]
    return await peer.open(sock=sock)


@pytest.mark.parametrize("form", HEADERS)
async def test_the_client_is_who_the_proxy_says(clients_of: Start, form: str) -> None:
    """Its address is what access rules judge."""
    clients = await clients_of(zone=ANYBODY, listeners=LISTENERS, access={"rules": RULES})
    header, address = HEADERS[form]
    peer = await proxied(clients, header)
    await peer.connect("proxied")
    client = clients.server.context.channels["proxied"].client
    assert (client.peer_host, client.peer_port) == (address, 4711)
    await peer.subscribe("t", qos=1)
    await peer.publish("t", b"x", 1)
    await peer.expect_publish("t", b"x")


@pytest.mark.parametrize("form", [HEADERS["v1 TCP4"][0], LOCAL["v2 LOCAL"]], ids=["client", "proxy"])
async def test_anonymous_clients_are_refused_on_loopback_too(clients_of: Start, form: bytes) -> None:
    """The proxy is on this machine; its clients need not be."""
    clients = await clients_of(listeners=LISTENERS)
    assert clients.server.listeners[0].bind[0] == "127.0.0.1"
    peer = await proxied(clients, form)
    await peer.connect("c", expect=0x87 if clients.version == 5 else 5)


@pytest.mark.parametrize("form", LOCAL)
async def test_the_proxy_itself(clients_of: Start, form: str) -> None:
    clients = await clients_of(zone=ANYBODY, listeners=LISTENERS)
    peer = await proxied(clients, LOCAL[form])
    await peer.connect("proxy")
    assert clients.server.context.channels["proxy"].client.peer_host == "127.0.0.1"


@pytest.mark.parametrize("transport", ["tcp"])
@pytest.mark.parametrize("form", BAD)
async def test_what_is_no_header_is_closed(clients_of: Start, form: str) -> None:
    clients = await clients_of(zone=ANYBODY, listeners=LISTENERS)
    peer = await proxied(clients, BAD[form])
    with pytest.raises(Closed):
        await peer.receive()
    await peer.close()
    good = await proxied(clients, HEADERS["v1 TCP4"][0])
    await good.connect("good")


@pytest.mark.parametrize("transport", ["tcp"])
async def test_a_header_that_does_not_come_in_time(clients_of: Start) -> None:
    clients = await clients_of(listeners=[{**LISTENERS[0], "proxy_protocol_timeout": 0.3}])
    peer = await proxied(clients, b"PROXY TC")
    with pytest.raises(Closed):
        await peer.receive()
    await peer.close()


@pytest.mark.parametrize("transport", ["tcp"])
async def test_a_header_byte_by_byte_and_connect_in_the_same_segment(clients_of: Start) -> None:
    clients = await clients_of(zone=ANYBODY, listeners=LISTENERS)
    header = HEADERS["v2 TCP4"][0]
    peer = await proxied(clients, header[:1])
    for byte in header[1:-1]:
        await peer.send(bytes([byte]))
    await peer.send(header[-1:])
    await peer.connect("slow")
