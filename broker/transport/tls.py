"""TLS: the SSLContext of an ssl or wss listener, and the identity in a client certificate."""

import socket
import ssl
from collections.abc import Callable
from contextvars import ContextVar
from functools import cached_property
from typing import Final, cast

import msgspec

from ..config import ListenerTlsSettings, TlsSettings
from ..loop.regular_file import MAX_CREDENTIALS, check_regular
from . import psk, tls_resumption

_RDN_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
# X509_V_ERR_... of OpenSSL: the error of a certificate is determined by one of these files.
_DECIDED_BY: Final = {
    **dict.fromkeys((2, 18, 19, 20, 21, 24), "tls.cafile"),  # its issuer is unknown, or is not an authority
    **dict.fromkeys((3, 11, 12, 23), "tls.crlfile"),  # no valid CRL; the certificate is revoked
}
_UNSPECIFIED: Final = 1
"""X509_V_ERR_UNSPECIFIED: the message describes the error."""
CERTIFICATE_REFUSED: Final = "tls_certificate"
"""The counter for client certificates that the listener does not accept, or that are missing."""
_TCP_INFO: Final = int(getattr(socket, "TCP_INFO", 0))
"""Only available on Linux."""
_CLOSED: Final = 7
"""TCP_CLOSE of ``tcpi_state``."""
# A renegotiation costs the server much more than the client. Many clients close without a close_notify: OpenSSL would
# forget their sessions, which they could not resume then; where a packet ends is known without it.
_OPTIONS: Final = ssl.OP_NO_RENEGOTIATION | int(getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0))
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsError(ValueError):
    """A TLS setting that cannot be used. ``setting`` is its name; the message is one line."""

    def __init__(self, setting: str, text: str) -> None:
        super().__init__(f"{setting}: {text}")
        self.setting = setting
        self.text = text


class CheckedHandshake:
    """A handshake by pre-shared keys or with a client certificate: the checks that OpenSSL does not make itself.

    ``established``: OpenSSL has completed it, so that no alert can be sent any longer."""

    psk_identity: str | None = None
    """The identity that the client has proved by its pre-shared key."""
    established = False
    _offered: str | None = None

    def check(self, step: Callable[[], None]) -> None:
        """Take a step of the handshake. Raises SSLError if the client is refused."""
        tls = cast(ssl.SSLObject, self)
        keys = tls.context.keys if isinstance(tls.context, ServerContext) else None
        if keys is None:
            step()
        else:
            self._step(keys, step)
        self.established = True
        if keys is not None:
            self.psk_identity = keys.proved(tls, self._offered)
            if self.psk_identity is None:  # a session that is no longer known, or ciphers that prove nothing
                raise psk.PskError(1, "the client has proved no identity")
        if tls.session_reused and tls.context.verify_mode != ssl.CERT_NONE:
            _verify_again(tls)

    def _step(self, keys: psk.PreSharedKeys, step: Callable[[], None]) -> None:
        """Continue a handshake by pre-shared keys. Raises SSLError, also in place of a SystemError of sslpsk3."""
        try:
            try:
                keys.step(step)
            finally:
                if keys.offered is not None:
                    self._offered = keys.offered
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except (ssl.SSLError, SystemError) as exc:
            raise keys.fault(exc, self._offered) from None


def _verify_again(tls: ssl.SSLObject) -> None:
    """Check the client certificate of a resumed session. Raises SSLError."""
    context = tls.context
    assert isinstance(context, ServerContext)
    what = tls_resumption.fault(tls, context.authorities, context.verify_mode == ssl.CERT_REQUIRED)
    if what is not None:
        exc = ssl.SSLCertVerificationError(1, what)
        exc.verify_message, exc.verify_code = what, _UNSPECIFIED
        raise exc


class PolledSocket(CheckedHandshake, ssl.SSLSocket):
    """The socket of a PolledTls."""

    def do_handshake(self, block: bool = False) -> None:
        self.check(super().do_handshake)


class Handshake(CheckedHandshake, ssl.SSLObject):
    """A handshake that sends its alert when it fails: the loop writes nothing more for a handshake that raises.

    ``refused`` is called once with the failure, and closes the socket when the peer has had time to read the alert.
    Until then the handshake looks unfinished to the loop, and data from the peer is dropped."""

    refused: Callable[[ssl.SSLError], None] | None = None
    incoming: ssl.MemoryBIO
    sock: socket.socket | None = None
    """The socket, from the end of the handshake on."""
    _failed = False

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        """Write nothing to a peer that has reset the connection: the loop would close it immediately, and read no more
        of the data that has arrived."""
        if self.sock is not None and is_reset(self.sock):
            return len(data)
        return super().write(data)

    def do_handshake(self) -> None:
        if self._failed:
            self.incoming.read()
            raise ssl.SSLWantReadError
        try:
            self.check(super().do_handshake)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as exc:
            refused, self.refused = self.refused, None
            if refused is None:
                raise
            refused(exc)
            if self.established:
                raise
            self._failed = True
            raise ssl.SSLWantReadError from None
        self.refused = None


def is_reset(sock: socket.socket) -> bool:
    """Return whether the other side has reset the connection. Data that it sent before can still be read."""
    if not _TCP_INFO:
        return False
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] == _CLOSED
    except OSError:
        return True


on_handshake_failure: ContextVar[Callable[[ssl.SSLError], None] | None] = ContextVar(
    "on_handshake_failure", default=None
)
"""Called if the handshake that the running task begins fails."""


class ServerContext(ssl.SSLContext):
    """A TLS context whose handshakes call the function in ``on_handshake_failure`` when they fail."""

    sslobject_class = Handshake
    sslsocket_class = PolledSocket

    for_trials: "ServerContext | None" = None
    """A context with the same files and TLS 1.2, if this one only has later versions: ``certificate_trial``."""

    keys: psk.PreSharedKeys | None = None

    @cached_property
    def authorities(self) -> tls_resumption.Authorities:
        """Return the authorities. They are read once, because a context does not change while it is in use."""
        return tls_resumption.authorities_of(self)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, Handshake)
        made.incoming = incoming
        if self.keys is not None:
            self.keys.attach(made)
        made.refused = on_handshake_failure.get()
        return made

    def wrap_accepted(self, sock: socket.socket) -> PolledSocket:
        """Return the TLS socket of a client, whose handshake is next. ``sock`` must be non-blocking, and belongs to the
        TLS socket afterwards."""
        made = self.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        assert isinstance(made, PolledSocket)
        if self.keys is not None:
            self.keys.attach(made)
        return made


def build_context(settings: TlsSettings) -> ServerContext:
    """Load the certificates of ``settings`` into a new context. Raises TlsError if something is missing or does not
    match.

    A reload creates another context and uses it for new handshakes: a context is never changed while it is in use, so
    files that cannot be read change nothing."""
    if isinstance(settings, ListenerTlsSettings) and settings.psk_file:
        return _psk_context(settings)
    context = _context(settings, "tls", settings.certfile, settings.keyfile, settings.key_password)
    others: dict[str, ServerContext] = {}
    for server_name, files in settings.server_names.items():
        place = f"tls.server_names.{server_name}"
        for key in files:
            if key not in ("certfile", "keyfile", "key_password"):
                raise TlsError(f"{place}.{key}", "unknown key; expected certfile, keyfile or key_password")
        others[server_name.lower().rstrip(".")] = _context(
            settings, place, files.get("certfile", ""), files.get("keyfile", ""), files.get("key_password", "")
        )
    if others:
        context.sni_callback = _chooser(others)
    return context


def _chooser(others: dict[str, ServerContext]) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]:
    """Return the callback that selects the certificate for a requested name: that of the name, otherwise that of its
    ``*.domain``, otherwise the first."""

    def choose(ssl_object: ssl.SSLObject, server_name: str | None, _: ssl.SSLContext) -> None:
        if server_name is None:
            return
        name = server_name.lower().rstrip(".")
        chosen = others.get(name) or others.get("*." + name.partition(".")[2])
        if chosen is not None:
            ssl_object.context = chosen

    return choose


def _context(settings: TlsSettings, place: str, certfile: str, keyfile: str, key_password: str) -> ServerContext:
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_version]
    context.options |= _OPTIONS
    if settings.ciphers:
        try:
            context.set_ciphers(settings.ciphers)
        except ssl.SSLError:
            raise TlsError("tls.ciphers", f"OpenSSL supports none of the ciphers {settings.ciphers!r}") from None
    _readable(f"{place}.certfile", certfile)
    _readable(f"{place}.keyfile", keyfile)
    try:
        # A password is always given, even an empty one: otherwise OpenSSL asks for it on the terminal.
        context.load_cert_chain(certfile, keyfile, key_password)
    except (ssl.SSLError, OSError, ValueError) as exc:
        raise _chain_error(place, certfile, keyfile, exc) from None
    _load_verification(context, settings)
    if context.verify_mode != ssl.CERT_NONE and settings.min_version != "1.2":
        context.for_trials = _context(
            msgspec.structs.replace(settings, min_version="1.2"), place, certfile, keyfile, key_password
        )
    return context


def pre_shared_keys(settings: ListenerTlsSettings) -> psk.PreSharedKeys:
    """Return the keys of ``psk_file``. Raises TlsError if it cannot be read, or conflicts with other settings."""
    for fault in settings.psk_faults():
        raise TlsError(f"tls.{fault[0]}", fault[1])
    try:
        return psk.PreSharedKeys(psk.read_psk_file(settings.psk_file), settings.psk_hint)
    except OSError as exc:
        raise TlsError(psk.SETTING, f"cannot read {settings.psk_file!r}: {exc.strerror or exc}") from None
    except ValueError as exc:
        raise TlsError(psk.SETTING, f"{settings.psk_file!r}: {exc}") from None


def _psk_context(settings: ListenerTlsSettings) -> ServerContext:
    why = psk.unavailable()
    if why is not None:
        raise TlsError(psk.SETTING, why)
    keys = pre_shared_keys(settings)
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    # A ticket would resume a session without a word of the identity.
    context.options |= _OPTIONS | ssl.OP_NO_TICKET
    try:
        context.set_ciphers((settings.ciphers or psk.CIPHERS) + psk.NEVER)
        usable = any("PSK" in cipher["name"] for cipher in context.get_ciphers())
    except ssl.SSLError:
        usable = False
    if not usable:
        raise TlsError("tls.ciphers", psk.no_cipher(settings.ciphers))
    keys.install(context)
    context.keys = keys
    return context


def _chain_error(place: str, certfile: str, keyfile: str, exc: Exception) -> TlsError:
    if isinstance(exc, ssl.SSLError) and exc.reason == "KEY_VALUES_MISMATCH":
        return TlsError(f"{place}.keyfile", f"{keyfile!r} is not the private key of the certificate in {certfile!r}")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(certfile)
    except ssl.SSLError:
        return TlsError(f"{place}.certfile", f"{certfile!r} contains no PEM certificate")
    return TlsError(f"{place}.keyfile", f"cannot use {keyfile!r} with the key_password given: {_reason(exc)}")


def _load_verification(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.cafile:
        _readable("tls.cafile", settings.cafile)
        try:
            context.load_verify_locations(settings.cafile)
        except ssl.SSLError as exc:
            raise TlsError("tls.cafile", f"{settings.cafile!r} contains no PEM certificate: {_reason(exc)}") from None
    if settings.verify == "none":
        if settings.crlfile:
            raise TlsError("tls.crlfile", 'has no effect while tls.verify is "none"')
        if settings.peer_cert_as_username:
            raise TlsError("tls.peer_cert_as_username", 'no client certificate is requested while tls.verify is "none"')
        return
    if not settings.cafile:
        raise TlsError("tls.cafile", f'is required while tls.verify is "{settings.verify}"')
    context.verify_mode = ssl.CERT_REQUIRED if settings.verify == "required" else ssl.CERT_OPTIONAL
    # A resumed session skips the check of the certificate, which may have expired since; see tls_resumption.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    if settings.crlfile:
        _readable("tls.crlfile", settings.crlfile)
        before = context.cert_store_stats()["crl"]
        try:
            context.load_verify_locations(settings.crlfile)
        except ssl.SSLError as exc:
            raise TlsError("tls.crlfile", f"{settings.crlfile!r} contains no PEM CRL: {_reason(exc)}") from None
        if context.cert_store_stats()["crl"] == before:
            raise TlsError("tls.crlfile", f"{settings.crlfile!r} contains no CRL that is not in tls.cafile")
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _readable(setting: str, path: str) -> None:
    if not path:
        raise TlsError(setting, "is missing")
    try:
        check_regular(path, MAX_CREDENTIALS)
    except (OSError, ValueError) as exc:  # ValueError: a NUL in the name
        raise TlsError(setting, f"cannot read {path!r}: {getattr(exc, 'strerror', None) or exc}") from None


def _reason(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLError) and exc.reason:
        return exc.reason.lower().replace("_", " ")
    return str(exc)


def handshake_refusal(error: ssl.SSLError) -> tuple[str, str, str]:
    """Return why a handshake failed: the reason under which it is counted, the setting, and the error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return CERTIFICATE_REFUSED, _DECIDED_BY.get(error.verify_code, "tls.verify"), error.verify_message
    if isinstance(error, psk.PskError):
        return psk.PSK_REFUSED, psk.SETTING, str(error)
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return CERTIFICATE_REFUSED, "tls.verify", tls_resumption.MISSING
    return "tls_handshake", "tls", error.reason or str(error)


def peer_identity(ssl_object: ssl.SSLObject | ssl.SSLSocket | None) -> tuple[str | None, str | None]:
    """Return the common name and the subject of the verified client certificate; (None, None) without one. With a
    pre-shared key, its identity takes the place of the common name."""
    if isinstance(ssl_object, (Handshake, PolledSocket)) and ssl_object.psk_identity is not None:
        return ssl_object.psk_identity, None
    certificate = ssl_object.getpeercert() if ssl_object is not None else None
    if not certificate:
        return None, None
    return names_in(cast(tls_resumption.Certificate, certificate).get("subject", ()))


def names_in(subject: tls_resumption.DistinguishedName) -> tuple[str | None, str]:
    """Return common name and text of a subject.

    The text is in the form of RFC 4514, most specific part first: ``CN=pump-7,OU=Plant,O=Example``. A certificate with
    several common names has none, because it is not known which one is meant."""
    names = [value for rdn in subject for kind, value in rdn if kind == "commonName"]
    dn = ",".join(
        "+".join(f"{_RDN_NAMES.get(kind, kind)}={_escape(value)}" for kind, value in rdn) for rdn in reversed(subject)
    )
    return (names[0] if len(names) == 1 else None), dn


def _escape(value: str) -> str:
    """Return an attribute's value in the form of RFC 4514, section 2.4."""
    escaped = "".join("\\" + c if c in '"+,;<>\\' else "\\00" if c == "\0" else c for c in value)
    if escaped.startswith((" ", "#")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(value) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped
