"""Pre-shared keys of a DTLS listener: the only module that uses internals of pyOpenSSL (decision 0204).

The package cryptography contains OpenSSL's functions for pre-shared keys, for programs that extend pyOpenSSL's
Context."""

import importlib
from typing import Any, Final

from . import psk
from .tls import TlsError

CIPHERS: Final = psk.CIPHERS + ":@SECLEVEL=0"
"""The default: also the one cipher that RFC 7252, section 9.1.3.1, requires, TLS_PSK_WITH_AES_128_CCM_8. OpenSSL's
default level refuses its short tag. The other ciphers of the list have at least 128 bits on any level."""
CHANGED: Final = "this version of pyOpenSSL has no functions for pre-shared keys"


def install(context: Any, keys: psk.PreSharedKeys, hint: str) -> None:
    """Let an ``OpenSSL.SSL.Context`` without connections ask for keys. Raises TlsError."""
    openssl = importlib.import_module("OpenSSL.SSL")
    try:
        library, foreign, pointer = openssl._lib, openssl._ffi, context._context
        has_keys = library.Cryptography_HAS_PSK
    except AttributeError:
        has_keys = 0
    if not has_keys:
        raise TlsError(psk.SETTING, CHANGED)

    def key_of(_: Any, identity: Any, key: Any, size: int) -> int:
        """Write the key of an identity, and return its length; 0: the handshake fails."""
        try:
            found = keys.key_of(foreign.string(identity).decode())
        except UnicodeDecodeError:
            return 0
        if len(found) > size:
            return 0
        foreign.memmove(key, found, len(found))
        return len(found)

    callback = foreign.callback("unsigned int(SSL *, const char *, unsigned char *, unsigned int)", key_of)
    context.set_app_data(callback)  # it has to live as long as the context, which connections keep
    library.SSL_CTX_set_psk_server_callback(pointer, callback)
    if hint:
        library.SSL_CTX_use_psk_identity_hint(pointer, hint.encode())
