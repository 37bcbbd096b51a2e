"""Masking of secrets in values that are shown: by the usual names of secrets, and by their places in URLs."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

MASK: Final = "******"
_WORDS: Final = frozenset(
    [
        "apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "jwt", "pass", "passphrase",
        "passwd", "password", "pwd", "secret", "sig", "signature", "token",
    ]
)  # fmt: skip
_KEYS_OF_DATA: Final = frozenset(
    ["foreign", "idempotency", "message", "partition", "primary", "public", "routing", "sort"]
)
"""``routing_key`` grants no access; ``api_key`` and ``key`` do."""
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_USERINFO: Final = re.compile(r"(?<=://)([^/?#@\s:]*)(:[^/?#@\s]*)?(?=@)")
_PARAMETER: Final = re.compile(r"(^|[?&;])([\w.~-]+)=([^&;#\s]*)")
_SEGMENT: Final = re.compile(r"(?<=/)[\w:.~-]{20,}(?=[/?#\s]|$)")
_PLACEHOLDERS: Final = re.compile(r"\$\{[^}]*\}")
_SCHEME: Final = re.compile(r"\s*(bearer|basic|token)?\s*", re.IGNORECASE)
_PRIVATE_KEY: Final = "PRIVATE KEY-----"


class Masked(ValueError):
    """The mask is in place of a secret, but no secret is stored for that place; the text names the place."""


def is_secret(name: str) -> bool:
    """Return whether a field, header or query parameter of this name contains a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    if words[-1] == "key" and _KEYS_OF_DATA.isdisjoint(words):
        return True
    return not _WORDS.isdisjoint(words)


def mask_text(text: str) -> str:
    """Return the text without private keys, and without the secrets of URLs, queries and forms in it."""
    if _PRIVATE_KEY in text:
        return MASK
    if "://" in text:
        text = _USERINFO.sub(lambda found: f"{found[1]}:{MASK}" if found[2] else MASK, text)
        text = _SEGMENT.sub(lambda found: MASK if _is_random(found[0]) else found[0], text)
    if "=" in text:
        text = _PARAMETER.sub(_parameter, text)
    return text


def _parameter(found: re.Match[str]) -> str:
    shown = MASK if found[3] and is_secret(found[2]) and _is_more_than_placeholders(found[3]) else found[3]
    return f"{found[1]}{found[2]}={shown}"


def _is_random(segment: str) -> bool:
    """Return whether a segment of a path looks like a secret of a chat service: digits, lower-case and upper-case
    letters, or only digits and letters of one case without a separator."""
    if "${" in segment or re.search("[0-9]", segment) is None:
        return False
    lower, upper = (re.search(kind, segment) is not None for kind in ("[a-z]", "[A-Z]"))
    return (lower and upper) or ((lower or upper) and segment.isalnum())


def _is_more_than_placeholders(text: str) -> bool:
    """Return whether a part of the text is in the configuration itself and does not come from a message."""
    return _SCHEME.fullmatch(_PLACEHOLDERS.sub("", text)) is None


def mask(value: object, declared: Collection[str] = ()) -> Any:
    """Return ``value`` as JSON values with its secrets masked. ``declared``: names of further secret members."""
    return _mask("", value, lambda name: name in declared)


def _mask(name: str, value: object, declared: Callable[[str], bool]) -> Any:
    if isinstance(value, str):
        if value and (declared(name) or (is_secret(name) and _is_more_than_placeholders(value))):
            return MASK
        return mask_text(value)
    if isinstance(value, Mapping):
        return {key: _mask(str(key), each, declared) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mask(name, each, declared) for each in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and (declared(name) or is_secret(name)):
        return MASK
    return value


def restore(given: object, stored: object, declared: Collection[str] = (), place: str = "") -> Any:
    """Return ``given`` with each mask replaced by the secret at that place in ``stored``. Raises Masked if
    ``stored`` has something else there. ``place``: the place of the whole value, for the error."""
    return _restore(place, "", given, stored, lambda name: name in declared)


def _restore(place: str, name: str, given: object, stored: object, declared: Callable[[str], bool]) -> Any:
    if isinstance(given, str):
        if MASK not in given:
            return given
        if stored is not None and _mask(name, stored, declared) == given:
            return stored
        plain = given.replace(MASK, "secret")
        if _mask(name, plain, declared) != plain:
            raise Masked(f"{place or name} has {MASK}, which masks a secret: give the secret")
        return given
    if isinstance(given, Mapping):
        known = stored if isinstance(stored, Mapping) else {}
        return {
            key: _restore(f"{place}.{key}" if place else str(key), str(key), each, known.get(key), declared)
            for key, each in given.items()
        }
    if isinstance(given, (list, tuple)):
        before = stored if isinstance(stored, (list, tuple)) else ()
        return [
            _restore(f"{place}[{index}]", name, each, before[index] if index < len(before) else None, declared)
            for index, each in enumerate(given)
        ]
    return given
