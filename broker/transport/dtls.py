"""DTLS 1.2 of a datagram listener: certificates or keys, and a cookie before any state (RFC 6347, section 4.2.1).

pyOpenSSL works on memory: datagrams in, datagrams out. It is imported when a listener needs it."""

import hmac
import importlib
import secrets
from itertools import count
from typing import Any, Final

from ..config import ListenerTlsSettings
from ..loop.regular_file import MAX_CREDENTIALS, read_regular
from . import dtls_psk, psk
from .tls import TlsError, names_in, pre_shared_keys

MISSING: Final = 'DTLS needs the package pyOpenSSL: pip install "taipan-mqtt[dtls]"'
MTU: Final = 1200
"""Maximum bytes of a handshake datagram: those that an IPv6 network carries without fragmentation, less headers."""
_RECORD_HEADER: Final = 13
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_RANDOM: Final = 27
"""Where the random number of a ClientHello is: behind the headers of record and handshake, and the version."""
_LARGEST: Final = 65_536
_COOKIE_BYTES: Final = 20
_NAMES: Final = {
    "CN": "commonName", "DC": "domainComponent", "C": "countryName", "L": "localityName", "O": "organizationName",
    "OU": "organizationalUnitName", "ST": "stateOrProvinceName", "STREET": "streetAddress", "UID": "userId",
}  # fmt: skip


_NUMBERS: Final = count(1)
"""Of sessions: one of an address is not that of another."""


class DtlsError(Exception):
    """A handshake has failed, or a session has ended; ``why`` is empty if the client has closed it. ``reason`` and
    ``setting``: how the listener counts it."""

    def __init__(self, why: str, reason: str = "tls_handshake", setting: str = "tls") -> None:
        super().__init__(why)
        self.why = why
        self.reason = reason
        self.setting = setting


def _library() -> Any:
    try:
        return importlib.import_module("OpenSSL.SSL")
    except ImportError:
        raise TlsError("tls", MISSING) from None


def is_client_hello(data: bytes) -> bool:
    """Return whether a datagram begins a handshake. Such a datagram is not encrypted, so it proves nothing about its
    sender."""
    return len(data) > _RECORD_HEADER and data[0] == _HANDSHAKE and data[3:5] == b"\0\0" and (
        data[_RECORD_HEADER] == _CLIENT_HELLO
    )  # fmt: skip


def client_random(data: bytes) -> bytes:
    """Return the random number of a ClientHello, which identifies its repetitions."""
    return data[_RANDOM : _RANDOM + 32]


class DtlsContext:
    """The certificates or keys of a listener. Raises TlsError for settings that cannot be used."""

    def __init__(self, settings: ListenerTlsSettings) -> None:
        _check(settings)
        self._ssl = ssl = _library()
        self._secret = secrets.token_bytes(32)
        context = self._context = ssl.Context(ssl.DTLS_SERVER_METHOD)
        # DTLS 1.0 has the bit of TLS 1.0.
        context.set_options(ssl.OP_COOKIE_EXCHANGE | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TLSv1 | ssl.OP_NO_TICKET)
        context.set_session_cache_mode(ssl.SESS_CACHE_OFF)
        context.set_cookie_generate_callback(self._cookie)
        context.set_cookie_verify_callback(lambda conn, cookie: hmac.compare_digest(self._cookie(conn), cookie))
        self._keys: psk.PreSharedKeys | None = None
        try:
            if settings.psk_file:
                self._load_keys(settings)
            else:
                self._load_certificates(settings)
        except (ssl.Error, OSError, ValueError) as error:
            raise TlsError("tls", f"DTLS: {_text(error)}") from None

    def _load_keys(self, settings: ListenerTlsSettings) -> None:
        self._keys = pre_shared_keys(settings)
        dtls_psk.install(self._context, self._keys, settings.psk_hint)
        try:
            self._context.set_cipher_list(((settings.ciphers or dtls_psk.CIPHERS) + psk.NEVER).encode())
        except self._ssl.Error:
            raise TlsError("tls.ciphers", psk.no_cipher(settings.ciphers)) from None
        if not any("PSK" in each for each in self._ssl.Connection(self._context).get_cipher_list()):
            raise TlsError("tls.ciphers", psk.no_cipher(settings.ciphers))

    def _load_certificates(self, settings: ListenerTlsSettings) -> None:
        ssl, context = self._ssl, self._context
        pem = importlib.import_module("cryptography.hazmat.primitives.serialization")
        key = read_regular(settings.keyfile, MAX_CREDENTIALS)
        context.use_certificate_chain_file(settings.certfile)
        context.use_privatekey(pem.load_pem_private_key(key, settings.key_password.encode() or None))
        context.check_privatekey()
        if settings.ciphers:
            context.set_cipher_list(settings.ciphers.encode())
        mode = ssl.VERIFY_NONE if settings.verify == "none" else ssl.VERIFY_PEER
        if settings.verify == "required":
            mode |= ssl.VERIFY_FAIL_IF_NO_PEER_CERT
        context.set_verify(mode)
        if settings.cafile:
            context.load_verify_locations(settings.cafile)
            context.load_client_ca(settings.cafile.encode())

    def _cookie(self, connection: Any) -> bytes:
        """Return the cookie of an address. It is computed, so nothing has to be stored for an address."""
        return hmac.digest(self._secret, connection.get_app_data(), "sha256")[:_COOKIE_BYTES]

    def hello(self, address: object, data: bytes) -> "tuple[list[bytes], DtlsSession | None]":
        """Process a datagram from an address without a session. Return the request for a cookie, which is smaller than
        the datagram, or the session of a client that has repeated its cookie."""
        ssl = self._ssl
        connection = ssl.Connection(self._context)
        connection.set_accept_state()
        connection.set_app_data(repr(address).encode())
        connection.set_ciphertext_mtu(MTU)
        connection.bio_write(data)
        try:
            connection.DTLSv1_listen()
        except ssl.WantReadError:
            pass
        except ssl.Error as error:
            raise DtlsError(_text(error)) from None
        else:
            return [], DtlsSession(ssl, connection, self._keys)
        answer = _outgoing(ssl, connection)
        return (answer if sum(map(len, answer)) <= len(data) else []), None


def _check(settings: ListenerTlsSettings) -> None:
    for key in ("server_names", "crlfile"):
        if getattr(settings, key):
            raise TlsError(f"tls.{key}", "has no effect on a DTLS listener")
    if settings.min_version != "1.2":
        raise TlsError("tls.min_version", "a DTLS listener supports version 1.2 only")


class DtlsSession:
    """One client: its handshake, then its encrypted datagrams."""

    __slots__ = ("_connection", "_identity", "_keys", "_ssl", "_unreadable", "done", "names", "number")

    def __init__(self, ssl: Any, connection: Any, keys: psk.PreSharedKeys | None = None) -> None:
        self._ssl = ssl
        self._connection = connection
        self._keys = keys
        self._identity: str | None = None  # that the client has sent, but not proved
        self._unreadable = False  # an encrypted record came behind the identity, and did not complete the handshake
        self.done = False
        self.number = next(_NUMBERS)
        self.names: tuple[str | None, str | None] = (None, None)
        """Common name and subject of the client certificate; with a pre-shared key, its identity and ``None``."""

    def handshake(self, data: bytes) -> None:
        """Process a datagram of the handshake; ``done`` shows whether that was the last one. Raises DtlsError."""
        ssl, connection = self._ssl, self._connection
        if data:
            connection.bio_write(data)
        try:
            if self._keys is None:
                connection.do_handshake()
            else:
                self._step(self._keys)
        except ssl.WantReadError:
            self._unreadable |= self._identity is not None and _has_encrypted(data)
            return
        except ssl.Error as error:
            raise self._failed(_text(error)) from None
        if self._keys is not None:
            if self._identity is None or not self._keys.knows(self._identity):  # a cipher that proves nothing
                raise DtlsError("the client has proved no identity", psk.PSK_REFUSED, psk.SETTING)
            self.done = True
            self.names = self._identity, None
            return
        self.done = True
        certificate = connection.get_peer_certificate(as_cryptography=True)
        if certificate is not None:
            self.names = names_in(tuple(tuple(map(_pair, rdn)) for rdn in certificate.subject.rdns))

    def _step(self, keys: psk.PreSharedKeys) -> None:
        try:
            keys.step(self._connection.do_handshake)
        finally:
            if keys.offered is not None:
                self._identity = keys.offered

    @staticmethod
    def _failed(why: str) -> DtlsError:
        if "psk identity not found" in why:
            return DtlsError("the identity is not UTF-8", psk.PSK_REFUSED, psk.SETTING)
        return DtlsError(why)

    def wrong_key(self) -> DtlsError | None:
        """Return what to report about an abandoned handshake, if the client's key seems to be the reason. A record that
        was encrypted with another key is ignored (RFC 6347, section 4.1.2.7), so the handshake does not fail but never
        ends."""
        if self._keys is None or self._identity is None or not self._unreadable:
            return None
        text = psk.wrong_key(self._identity, self._keys.knows(self._identity))
        return DtlsError(text, psk.PSK_REFUSED, psk.SETTING)

    def received(self, data: bytes = b"") -> list[bytes]:
        """Return what a datagram contains. A forged or repeated one contains nothing. Raises DtlsError."""
        ssl, connection = self._ssl, self._connection
        if data:
            connection.bio_write(data)
        found: list[bytes] = []
        while True:
            try:
                found.append(connection.recv(_LARGEST))
            except ssl.WantReadError:
                return found
            except ssl.ZeroReturnError:
                raise DtlsError("") from None
            except ssl.Error as error:
                raise DtlsError(_text(error)) from None

    def encrypted(self, data: bytes) -> list[bytes]:
        """Return the datagrams for a message. Raises DtlsError."""
        try:
            self._connection.send(data)
        except self._ssl.Error as error:
            raise DtlsError(_text(error)) from None
        return self.outgoing()

    def closing(self) -> list[bytes]:
        """Return the datagram that ends the session."""
        try:
            self._connection.shutdown()
        except self._ssl.Error:
            return []
        return self.outgoing()

    def outgoing(self) -> list[bytes]:
        """Return the datagrams that OpenSSL has prepared for sending."""
        return _outgoing(self._ssl, self._connection)

    def repeat_after(self) -> float | None:
        """Return the seconds after which the last flight of the handshake has to be repeated by ``repeat``."""
        seconds: float | None = self._connection.DTLSv1_get_timeout()
        return seconds

    def repeat(self) -> None:
        """Repeat the last flight of the handshake, if that is due. Raises DtlsError."""
        try:
            self._connection.DTLSv1_handle_timeout()
        except self._ssl.Error as error:
            raise DtlsError(_text(error)) from None


def _has_encrypted(data: bytes) -> bool:
    """Return whether a datagram has a record with an epoch above 0."""
    while len(data) > _RECORD_HEADER:
        if data[3:5] != b"\0\0":
            return True
        data = data[_RECORD_HEADER + int.from_bytes(data[11:13]) :]
    return False


def _pair(attribute: Any) -> tuple[str, str]:
    """Return the name and the value of an attribute, in the form for ``tls.names_in``."""
    name = attribute.rfc4514_attribute_name
    value = attribute.value
    return _NAMES.get(name, name), value if isinstance(value, str) else value.hex()


def _outgoing(ssl: Any, connection: Any) -> list[bytes]:
    """Return all waiting records in as few datagrams as possible: OpenSSL's memory does not mark where datagrams
    end."""
    data = b""
    while True:
        try:
            data += connection.bio_read(_LARGEST)
        except ssl.WantReadError:
            break
    datagrams: list[bytes] = []
    while data:
        size = _RECORD_HEADER + int.from_bytes(data[11:13])
        record, data = data[:size], data[size:]
        if datagrams and len(datagrams[-1]) + len(record) <= MTU:
            datagrams[-1] += record
        else:
            datagrams.append(record)
    return datagrams


def _text(error: Exception) -> str:
    """Return an error of OpenSSL in words."""
    found = error.args[0] if error.args else ""
    if isinstance(found, list):
        return ", ".join(str(each[-1]) for each in found) or "the handshake failed"
    return str(found or error)
