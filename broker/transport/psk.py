"""TLS-PSK: the file of identities and keys of a listener, and the identities that clients have proved.

TLS 1.2 only: Python has no callback for the pre-shared keys of TLS 1.3. Python 3.13 has one for TLS 1.2; before that,
the package sslpsk3 adds it. ``dtls_psk`` has that of DTLS.
"""

import importlib
import os
import secrets
import ssl
import stat
import sys
from collections.abc import Callable
from typing import Any, Final

from ..loop.regular_file import MIB, read_regular

PSK_REFUSED: Final = "tls_psk"
"""The reason under which a listener counts clients whose identity or key is wrong."""
SETTING: Final = "tls.psk_file"
MAX_IDENTITY: Final = 256
"""Bytes; OpenSSL refuses longer ones."""
MAX_KEY: Final = 256
MAX_FILE: Final = 16 * MIB
CIPHERS: Final = "kECDHEPSK:kDHEPSK:kPSK:!SHA1"
"""The default: first the ciphers with forward secrecy, then those for devices that can only use their key."""
NEVER: Final = ":!aNULL:!eNULL"
"""Added to every list: without encryption or without authentication, a key would protect nothing."""
UNAVAILABLE: Final = (
    'pre-shared keys need Python 3.13, or before that the package sslpsk3: pip install "taipan-mqtt[psk]"'
)
_UNREADABLE: Final = ("DECRYPTION_FAILED_OR_BAD_RECORD_MAC", "RECORD_LAYER_FAILURE")
"""OpenSSL's errors for a record that was encrypted with another key: before version 3.5, and since then."""
_MOST_SESSIONS: Final = 40_960  # OpenSSL keeps 20,480


class PskError(ssl.SSLError):
    """A handshake failed because of the identity or the key. The message is the reason."""


def read_psk_file(path: str) -> dict[str, bytes]:
    """Return the keys by identity. Raise OSError, or ValueError, which names a line; no text contains a key."""
    data = read_regular(path, MAX_FILE)
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o007:
        raise ValueError(f"contains secrets, and all users may access it (mode {mode:04o}): chmod 640")
    keys: dict[str, bytes] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            identity, key = _entry(line.strip())
            if identity in keys:
                raise ValueError("the identity occurs twice")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        keys[identity] = key
    return keys


def _entry(line: bytes) -> tuple[str, bytes]:
    name, colon, digits = line.partition(b":")
    if not colon:
        raise ValueError("expected identity:key, with the key in hexadecimal digits")
    try:
        identity = name.decode()
    except UnicodeDecodeError:
        raise ValueError("the identity is not UTF-8") from None
    if not identity or not identity.isprintable():
        raise ValueError("the identity is empty or has unprintable characters")
    if len(name) > MAX_IDENTITY:
        raise ValueError(f"the identity is longer than {MAX_IDENTITY} bytes")
    try:
        key = bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        raise ValueError("the key is not an even number of hexadecimal digits") from None
    if not 0 < len(key) <= MAX_KEY:
        raise ValueError(f"expected a key of 1 to {MAX_KEY} bytes")
    return identity, key


def no_cipher(ciphers: str) -> str:
    """Return the message about a list of ciphers that leaves no cipher."""
    return f"OpenSSL supports no cipher for pre-shared keys in {ciphers!r}"


def wrong_key(identity: str, known: bool) -> str:
    """Return the message about a client that could not prove its identity."""
    return f"wrong key for identity {identity!r}" if known else f"unknown identity {identity!r}"


class PreSharedKeys:
    """The keys of one listener, for the handshakes of one context."""

    def __init__(self, keys: dict[str, bytes], hint: str = "") -> None:
        self._keys = keys
        self._hint = hint
        self._sessions: dict[bytes, str] = {}  # which identity began a session that a client may resume
        self.offered: str | None = None
        """The identity that the client has sent in this step of a handshake."""

    def install(self, context: ssl.SSLContext) -> None:
        """Let the context ask for keys, if Python itself can."""
        if sys.version_info >= (3, 13):
            context.set_psk_server_callback(self.key_of, self._hint or None)

    def attach(self, ssl_object: ssl.SSLObject | ssl.SSLSocket) -> None:
        """Let a new SSL object ask for keys, if its context cannot."""
        if sys.version_info < (3, 13):
            package = _package()
            package.set_psk_server_callback(_key_of, self._hint or None)
            # Once: sslpsk3's own classes do this before each step, which starts the handshake again.
            package.setup_psk_callbacks(ssl_object)

    def key_of(self, identity: str | None) -> bytes:
        """Return the key of an identity. For an unknown identity, return a random key, so that it fails like a wrong
        key: otherwise the alert would reveal which identities exist."""
        self.offered = identity or ""
        key = self._keys.get(self.offered)
        return secrets.token_bytes(32) if key is None else key

    def knows(self, identity: str) -> bool:
        return identity in self._keys

    def step(self, take: Callable[[], None]) -> None:
        """Take one step of a handshake; the identity that the client sent in it is in ``offered``."""
        global _current
        self.offered, _current = None, self
        try:
            take()
        finally:
            _current = None

    def fault(self, error: Exception, offered: str | None) -> ssl.SSLError:
        """Return what to report for a handshake that failed with this error."""
        reason = error.reason if isinstance(error, ssl.SSLError) else None
        if offered is not None and reason in _UNREADABLE:
            return PskError(1, wrong_key(offered, self.knows(offered)))
        if reason == "DATA_LENGTH_TOO_LONG":
            return PskError(1, "the identity is too long")
        # sslpsk3 fails with a SystemError when Python itself says that there is no such identity.
        if reason == "PSK_IDENTITY_NOT_FOUND" or not isinstance(error, ssl.SSLError):
            return PskError(1, "the identity is not UTF-8")
        return error

    def proved(self, ssl_object: ssl.SSLObject, offered: str | None) -> str | None:
        """Return the identity of a client whose handshake is done; ``None``: it has not proved one."""
        session = ssl_object.session
        number = b"" if session is None else session.id
        if ssl_object.session_reused:
            return self._sessions.get(number)
        if offered not in self._keys:
            return None
        if number:
            self._sessions[number] = offered
            if len(self._sessions) > _MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        return offered


_current: PreSharedKeys | None = None
"""Whose handshake takes a step: sslpsk3 calls one function for all."""
_sslpsk3: Any = None


def _key_of(identity: str | None) -> bytes:
    return b"" if _current is None else _current.key_of(identity)


def _package() -> Any:
    """Return the one context of sslpsk3 whose callback all listeners share, because the package never forgets a
    context."""
    global _sslpsk3
    if _sslpsk3 is None:
        _sslpsk3 = importlib.import_module("sslpsk3").SSLPSKContext(ssl.PROTOCOL_TLS_SERVER)
    return _sslpsk3


def unavailable() -> str | None:
    """Return why this Python cannot use pre-shared keys, and what to do about it; ``None``: it can."""
    if sys.version_info >= (3, 13):
        return None if getattr(ssl, "HAS_PSK", False) else "the OpenSSL of this Python has no pre-shared keys"
    try:
        _package()
    except ImportError:
        return UNAVAILABLE
    return None
