"""Names of entries in a directory (RFC 4514): templates, and the escaping of values in them."""

import re
from collections.abc import Mapping
from typing import Final

_PLACEHOLDER: Final = re.compile(r"\$\{(\w+)\}")
_SPECIAL: Final = frozenset(b'"+,;<=>\\#\0 ')
USER: Final = "user"


def escaped(value: str) -> str:
    """Return the value as a part of a name: special characters, and all others except printable ASCII, as hexadecimal
    digits."""
    return "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte not in _SPECIAL else f"\\{byte:02x}"
        for byte in value.encode("utf-8", "surrogatepass")
    )


def placeholders(template: str) -> frozenset[str]:
    return frozenset(_PLACEHOLDER.findall(template))


def name_of(template: str, settings: Mapping[str, str], user: str) -> str:
    """Return the name with ``${user}`` escaped, and the other placeholders replaced by the values in the settings."""
    return _PLACEHOLDER.sub(lambda found: escaped(user) if found[1] == USER else settings.get(found[1], ""), template)


def text_of(template: str, settings: Mapping[str, str], user: str) -> str:
    """Return the value of a condition, which is sent as a separate value and needs no escapes."""
    return _PLACEHOLDER.sub(lambda found: user if found[1] == USER else settings.get(found[1], ""), template)
