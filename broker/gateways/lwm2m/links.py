"""Lists of links (RFC 6690): the objects of a device, in its registration and in its answer to discover."""

from dataclasses import dataclass, field
from typing import Final

MAX_LINKS: Final = 1024
MAX_ATTRIBUTES: Final = 32


class BadLinks(ValueError):
    """A text is not a list of links; the message says why."""


@dataclass(frozen=True, slots=True)
class WebLink:
    """``</3/0>;pmin=10``: target ``/3/0``, attributes by name; an attribute without a value has an empty one."""

    target: str
    attributes: dict[str, str] = field(default_factory=dict)


def split(text: str) -> list[str]:
    """Return the links as texts: at each comma that is neither in ``<>`` nor in quotation marks."""
    return [each.strip() for each in _cut(text, ",") if each.strip()]


def parse(text: str) -> list[WebLink]:
    """Return the links. Raises BadLinks."""
    links = split(text)
    if len(links) > MAX_LINKS:
        raise BadLinks(f"more than {MAX_LINKS} links")
    return [_link(each) for each in links]


def _link(text: str) -> WebLink:
    target, *parts = _cut(text, ";")
    target = target.strip()
    if not target.startswith("<") or not target.endswith(">"):
        raise BadLinks(f"{target[:40]!r} is not a link in <>")
    if len(parts) > MAX_ATTRIBUTES:
        raise BadLinks(f"a link has more than {MAX_ATTRIBUTES} attributes")
    attributes = {}
    for part in parts:
        name, _, value = part.partition("=")
        attributes[name.strip().lower()] = value.strip().strip('"')
    return WebLink(target[1:-1].strip(), attributes)


def _cut(text: str, separator: str) -> list[str]:
    """Split a text, but not within ``<>`` or quotation marks."""
    found, start, quoted, inside = [], 0, False, False
    for at, char in enumerate(text):
        if char == '"' and not inside:
            quoted = not quoted
        elif quoted:
            continue
        elif char in "<>":
            inside = char == "<"
        elif char == separator and not inside:
            found.append(text[start:at])
            start = at + 1
    found.append(text[start:])
    return found
