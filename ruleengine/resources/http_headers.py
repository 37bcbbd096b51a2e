"""Headers of requests that an operator configures: which names and values may be sent."""

import re
from typing import Final

from ..params import ParamError

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Only the client sets headers that frame the request.
_FRAMING: Final = frozenset({"content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"})


def header_name(key: str, name: str) -> str:
    """Return the name of a header in the form that is sent: in lower case, ``_`` as ``-``. Raises ParamError."""
    if not _TOKEN.fullmatch(name):
        raise ParamError(key, f"{name!r} is not a valid HTTP header name")
    sent = name.lower().replace("_", "-")
    if sent in _FRAMING:
        raise ParamError(key, f"{name} cannot be set")
    return sent


def header_value(key: str, value: object) -> str:
    """Return the value of a header. Raises ParamError."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ParamError(key, "the values of headers must be strings")
    text = str(value)
    if any(each in text for each in "\r\n\0"):
        raise ParamError(key, "a header cannot contain a line break")
    return text
