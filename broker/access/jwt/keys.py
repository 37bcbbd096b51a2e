"""JwtKeys: the keys for verifying the signatures of tokens, from a secret, a file, or a URL."""

import asyncio
import base64
import binascii
import logging
from collections.abc import Iterator
from typing import Final

import aiohttp
import jwt
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import get_default_algorithms

from ...loop.regular_file import MAX_CREDENTIALS, read_regular
from ...observability.masking import mask_text
from ...setting_rules import Fault
from ..key_set import KeySet, VerificationKey
from .declaration import JwtSettings

logger = logging.getLogger(__name__)

_MAX_KEYS_BYTES: Final = 1_048_576
_FETCH_TIMEOUT: Final = 10.0
_RETRY: Final = 5.0


class KeyNotFound(Exception):
    """``fetched``: the keys were fetched, so the key will not appear soon either. ``setting``: the setting that names
    the place where the key was searched for."""

    def __init__(self, fetched: bool, setting: str) -> None:
        super().__init__(setting)
        self.fetched = fetched
        self.setting = setting


class JwtKeys:
    """The keys by algorithm. A secret is only ever used with ``HS...``, a public key only with the others."""

    def __init__(self, settings: JwtSettings) -> None:
        """Raises ``ValueError`` with the setting and the problem."""
        self._by_algorithm: dict[str, VerificationKey] = {}
        self._set = KeySet()
        self._from_url = bool(settings.jwks_url)
        self._fetched = not self._from_url
        if not (settings.secret or settings.public_key_file or settings.jwks_file or settings.jwks_url):
            raise ValueError("needs secret, public_key_file, jwks_file or jwks_url")
        if settings.secret:
            self._take_secret(settings)
        if settings.public_key_file:
            self._take_public_key(settings)
        if settings.jwks_file:
            self._set = KeySet.parse(_read(settings.jwks_file))

    def _take_secret(self, settings: JwtSettings) -> None:
        secret = settings.secret.encode()
        if settings.secret_base64:
            try:
                secret = base64.b64decode(secret.replace(b"-", b"+").replace(b"_", b"/") + b"=" * (-len(secret) % 4))
            except binascii.Error as error:
                raise ValueError(f"secret is not base64: {error}") from None
        for algorithm in settings.algorithms:
            if algorithm.startswith("HS"):
                self._by_algorithm[algorithm] = secret

    def _take_public_key(self, settings: JwtSettings) -> None:
        text = _read(settings.public_key_file)
        try:
            key = (
                x509.load_pem_x509_certificate(text).public_key()
                if b"BEGIN CERTIFICATE" in text
                else load_pem_public_key(text)
            )
        except (ValueError, TypeError) as error:
            raise ValueError(f"{settings.public_key_file}: not a public key in PEM format: {error}") from None
        known = get_default_algorithms()
        for algorithm in settings.algorithms:
            if algorithm.startswith("HS"):
                continue
            try:
                self._by_algorithm[algorithm] = known[algorithm].prepare_key(key)
            except (jwt.PyJWTError, ValueError, TypeError):
                continue  # a key of another type
        if not any(not algorithm.startswith("HS") for algorithm in self._by_algorithm):
            raise ValueError(f"{settings.public_key_file}: the key fits none of the algorithms")

    def replace_set(self, keys: KeySet) -> None:
        """Use the current keys of the URL."""
        self._set = keys
        self._fetched = True

    def find(self, algorithm: str, key_id: object) -> VerificationKey:
        """Return the key. Raises ``KeyNotFound`` if there is none, or no unambiguous one."""
        key = self._set.find(algorithm, key_id) or self._by_algorithm.get(algorithm)
        if key is not None:
            return key
        where = "jwks_url" if self._from_url else "jwks_file" if len(self._set) else "algorithms"
        raise KeyNotFound(self._fetched, f"access.jwt.{where}")


class JwksUrl:
    """Keeps the keys of a URL up to date. After a failure, the old keys remain active, and the next attempt follows
    soon."""

    def __init__(self, url: str, refresh: float, keys: JwtKeys) -> None:
        self._url = url
        self._refresh = refresh
        self._keys = keys
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            fetched = await self.fetch()
            await asyncio.sleep(self._refresh if fetched else min(_RETRY, self._refresh))

    async def fetch(self) -> bool:
        """Fetch the keys once, now; return whether there are new keys."""
        try:
            timeout = aiohttp.ClientTimeout(total=_FETCH_TIMEOUT)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(self._url) as response:
                response.raise_for_status()
                text = b""
                async for piece in response.content.iter_any():
                    text += piece
                    if len(text) > _MAX_KEYS_BYTES:
                        raise ValueError("more than 1 MiB")
            self._keys.replace_set(KeySet.parse(text))
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            logger.warning(
                "jwks_not_fetched setting=access.jwt.jwks_url error=%s detail=%s",
                type(error).__name__,
                mask_text(str(error)),
            )
            return False
        return True


def _read(file: str) -> bytes:
    try:
        return read_regular(file, MAX_CREDENTIALS)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror or error}") from None


def faults(settings: JwtSettings) -> Iterator[Fault]:
    """Yield the faults in combinations of keys, and those of the files."""
    if settings.token_from == "username":
        for claim, template in settings.verify_claims.items():
            if template == "%u" and claim != settings.username_claim:
                yield Fault(
                    ("verify_claims", claim), "the token is the username: there is no other username to compare with"
                )
    try:
        JwtKeys(settings)
    except ValueError as error:
        yield Fault((), str(error))
