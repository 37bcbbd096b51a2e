"""The bytes that a client sent before its connection failed, and that were not read yet.

A write to a client that has closed its socket fails, and the loop closes the connection immediately. The data that the
system, or TLS, still has may contain a DISCONNECT."""

import asyncio
import os
import ssl
from collections.abc import Iterator
from typing import Final, cast

from .layer import Layer

_PIECE: Final = 65_536
_MOST: Final = 16_777_216
"""In bytes: more than a system keeps for a socket."""


def unread(transport: asyncio.BaseTransport, error: Exception | None) -> Iterator[bytes]:
    """Return the bytes that ``transport`` has not passed on, in pieces. Called by its protocol's ``connection_lost``
    with its ``error``.

    Return nothing for a layer that passes on the rest itself."""
    below = transport
    while isinstance(below, Layer):
        if below.reads_to_the_end:
            return
        below = below.below
    ssl_object = cast(ssl.SSLObject | None, below.get_extra_info("ssl_object"))
    sock = below.get_extra_info("socket")
    if ssl_object is None and error is None:
        return  # a socket is read to its end before that is reported
    left = _MOST
    while left > 0 and (ssl_object is not None or sock is not None):
        try:
            # Under TLS the socket is closed by now; the data read from it still has to be decrypted.
            data = os.read(sock.fileno(), _PIECE) if ssl_object is None else ssl_object.read(_PIECE)
        except (OSError, ValueError):
            return
        if not data:
            return
        left -= len(data)
        yield data
