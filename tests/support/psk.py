"""Clients with a pre-shared key, the file of keys of a listener, and what a test does if Python cannot use them."""

import importlib
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.config import ListenerTlsSettings
from taipan.broker.transport.psk import unavailable

from .absent import absent

KEY = bytes(range(16))
OTHER_KEY = bytes(16)

needs_psk = pytest.mark.usefixtures("psk_works")


@pytest.fixture
def psk_works() -> None:
    if unavailable() is not None:
        absent("sslpsk3")


class PskFile:
    """The file of a listener, with ``pump-7`` in it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "psk"
        self.write({"pump-7": KEY})

    def write(self, keys: dict[str, bytes]) -> None:
        self.path.write_text("".join(f"{identity}:{key.hex()}\n" for identity, key in keys.items()))
        self.path.chmod(0o640)

    def settings(self, **keys: Any) -> ListenerTlsSettings:
        return ListenerTlsSettings(**{"psk_file": str(self.path), **keys})


class PskClient:
    """``hints`` are those that servers have sent."""

    def __init__(self, identity: str, key: bytes = KEY, ciphers: str = "PSK") -> None:
        self.hints: list[str | None] = []

        def answer(hint: str | None) -> tuple[str, bytes]:
            self.hints.append(hint)
            return identity, key

        made: Any = ssl.SSLContext
        if sys.version_info < (3, 13):
            made = importlib.import_module("sslpsk3").SSLPSKContext
        self.context: Any = made(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE
        self.context.maximum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_ciphers(ciphers)
        self.context.set_psk_client_callback(answer)
