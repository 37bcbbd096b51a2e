"""A client of DTLS, with certificates or pre-shared keys, that speaks CoAP."""

import asyncio
from typing import Any

from OpenSSL import SSL

from taipan.broker.gateways.coap import codec
from tests.support.api import ManagedNode
from tests.support.patience import patience

PROGRAMS = ["coap-client-openssl", "coap-client-gnutls"]


def listener_of(node: ManagedNode) -> Any:
    [listener] = [each for each in node.server.listeners if each.name == "secure"]
    return listener


class SecureClient(asyncio.DatagramProtocol):
    """A client of DTLS by pyOpenSSL, with a certificate, or with an identity and its key. ``loses`` has the numbers of
    datagrams of the node that are lost; ``hints`` are those that it has sent."""

    def __init__(
        self, certificate: tuple[str, str] | None = None, psk: tuple[str | bytes, bytes] | None = None,
        ciphers: str = "PSK",
    ) -> None:  # fmt: skip
        context = SSL.Context(SSL.DTLS_CLIENT_METHOD)
        self.hints: list[str] = []
        if psk is not None:
            self._use_key(context, psk[0], psk[1])
            context.set_cipher_list(ciphers.encode())
        if certificate is not None:
            context.use_certificate_chain_file(certificate[0])
            context.use_privatekey_file(certificate[1])
        self.connection = SSL.Connection(context)
        self.connection.set_connect_state()
        self.connection.set_ciphertext_mtu(1400)
        self.inbox: asyncio.Queue[codec.Packet] = asyncio.Queue()
        self.done = asyncio.Event()
        self.failed = asyncio.Event()
        self.raw: list[bytes] = []
        self.sent: list[bytes] = []
        self.loses: set[int] = set()
        self.count = 0
        self.transport: asyncio.DatagramTransport

    def _use_key(self, context: SSL.Context, identity: str | bytes, key: bytes) -> None:
        ssl: Any = SSL
        library, foreign = ssl._lib, ssl._ffi
        name = identity if isinstance(identity, bytes) else identity.encode()

        def answer(_: Any, hint: Any, place: Any, room: int, key_place: Any, key_room: int) -> int:
            self.hints.append(foreign.string(hint).decode() if hint else "")
            foreign.memmove(place, name + b"\0", len(name) + 1)
            foreign.memmove(key_place, key, len(key))
            return len(key)

        form = "unsigned int(SSL *, const char *, char *, unsigned int, unsigned char *, unsigned int)"
        callback = foreign.callback(form, answer)
        context.set_app_data(callback)  # the context keeps it
        library.SSL_CTX_set_psk_client_callback(context._context, callback)  # type: ignore[attr-defined]

    @classmethod
    async def open(
        cls, node: ManagedNode, certificate: tuple[str, str] | None = None,
        psk: tuple[str | bytes, bytes] | None = None, ciphers: str = "PSK",
    ) -> "SecureClient":  # fmt: skip
        loop = asyncio.get_running_loop()
        _, made = await loop.create_datagram_endpoint(
            lambda: cls(certificate, psk, ciphers), remote_addr=listener_of(node).bind
        )
        return made

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def handshake(self) -> None:
        try:
            self.connection.do_handshake()
            self.done.set()
        except SSL.WantReadError:
            pass
        except SSL.Error:
            self.failed.set()
        self.flush()

    def flush(self) -> None:
        while True:
            try:
                data = self.connection.bio_read(65_536)
            except SSL.WantReadError:
                return
            self.sent.append(data)
            self.transport.sendto(data)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.count += 1
        if self.count - 1 in self.loses:
            return
        self.raw.append(data)
        self.connection.bio_write(data)
        if not self.done.is_set():
            self.handshake()
        try:
            while self.done.is_set():
                self.inbox.put_nowait(codec.decode(self.connection.recv(65_536)))
        except SSL.WantReadError:
            pass
        except SSL.Error:
            self.failed.set()

    async def connect(self) -> None:
        self.handshake()
        async with asyncio.timeout(patience(20)):
            await self.done.wait()

    async def put(self, uri: str, payload: bytes, mid: int = -1) -> str:
        await self.send(uri, payload, mid)
        async with asyncio.timeout(patience(20)):
            return codec.dotted((await self.inbox.get()).code)

    async def send(self, uri: str, payload: bytes, mid: int = -1, code: int = codec.PUT) -> None:
        path, _, query = uri.partition("?")
        options = [(codec.URI_PATH, each.encode()) for each in path.split("/")]
        options += [(codec.URI_QUERY, each.encode()) for each in query.split("&")]
        self.connection.send(codec.encode(codec.CON, code, len(self.sent) if mid < 0 else mid, b"t", options, payload))
        self.flush()

    def close(self) -> None:
        self.transport.close()
