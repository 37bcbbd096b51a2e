"""Verification of ID tokens (OpenID Connect Core 1.0, 3.1.3.7)."""

import hmac
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import jwt

from taipan.broker.observability.log_text import one_line

from ...configuration.openid import OpenIdSettings
from .provider import OpenIdProvider
from .refused import OpenIdRefused

if TYPE_CHECKING:
    from jwt.types import Options

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""Signatures by a key that only the provider has: not ``none``, and no ``HS...``, whose key the client would share."""
_LATEST: Final = 1e12  # Unix seconds; greater values are not valid times

# PyJWT checks signature and form; times and claims are checked here, with the node's clock and an exact reason.
_OPTIONS: "Final[Options]" = {
    "verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False, "verify_iss": False,
    "verify_sub": False, "verify_jti": False,
}  # fmt: skip


async def verify_id_token(
    token: str, provider: OpenIdProvider, settings: OpenIdSettings, nonce: str, now: float
) -> dict[str, Any]:
    """Return the claims of an ID token. ``now``: Unix seconds. Raises OpenIdRefused."""
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise _wrong(f"header: {type(error).__name__}") from None
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS:
        raise _wrong(f"alg: {str(algorithm)[:20]} is not accepted")
    if "crit" in header:
        raise _wrong("crit: extensions are not supported")
    key = await provider.key(algorithm, header.get("kid"))
    if key is None:
        raise _wrong("kid: the provider has no such key")
    try:
        claims: dict[str, Any] = jwt.decode(token, key, algorithms=[algorithm], options=_OPTIONS)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise _wrong(f"signature: {type(error).__name__}") from None
    _check(claims, settings, nonce, now)
    return claims


def _check(claims: dict[str, Any], settings: OpenIdSettings, nonce: str, now: float) -> None:
    if claims.get("iss") != settings.issuer:
        raise _wrong("iss: the token is from another issuer")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if settings.client_id not in audiences:
        raise _wrong("aud: the token is for another client", "client_id")
    party = claims.get("azp")
    if party != settings.client_id and (party is not None or len(audiences) > 1):
        raise _wrong("azp: the token was issued to another client", "client_id")
    if not isinstance(claims.get("sub"), str) or not claims["sub"]:
        raise _wrong("sub: missing")
    given = claims.get("nonce")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), nonce.encode()):
        raise _wrong("nonce: belongs to another login")
    expires, issued, begins = claims.get("exp"), claims.get("iat"), claims.get("nbf", 0)
    if not _is_time(expires) or now >= expires + settings.leeway:
        raise _wrong("exp: the token has expired", "leeway")
    if not _is_time(issued) or now + settings.leeway < issued:
        raise _wrong("iat: issued in the future", "leeway")
    if not _is_time(begins) or now + settings.leeway < begins:
        raise _wrong("nbf: not valid yet", "leeway")


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LATEST


def _wrong(detail: str, setting: str = "") -> OpenIdRefused:
    return OpenIdRefused("token", one_line(detail), setting)
