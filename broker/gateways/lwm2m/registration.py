"""Registration: the data that a device sends about itself with POST /rd, and later with POST to its assigned
location."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import unquote

from .links import BadLinks, WebLink, parse

DEFAULT_LIFETIME: Final = 86_400
"""Seconds, if a device names none (LwM2M 1.0, 5.3.1)."""
DEFAULT_BINDING: Final = "U"
MAX_ENDPOINT: Final = 255
"""Bytes of an endpoint name."""
MAX_VALUE: Final = 255
"""Characters of another parameter."""
MAX_OBJECTS: Final = 512
_NOT_IN_A_NAME: Final = frozenset("/+#\0")
"""An endpoint name becomes a level of topics: with these it would be a filter, or the topics of another device."""

BINDINGS: Final = frozenset(("U", "UQ", "S", "SQ", "US", "UQS"))


class RegistrationRefused(ValueError):
    """A registration is not accepted: ``code`` is that of CoAP; the message says why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


BAD_REQUEST: Final = 0x80
PRECONDITION_FAILED: Final = 0x8C


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Lifetimes in seconds that a listener accepts."""

    shortest: int
    longest: int


@dataclass(frozen=True, slots=True)
class Registration:
    """``root``: the device's alternate path, before all paths; ``objects``: objects and instances without it.

    ``parameters``: those of the request, under their names in LwM2M, for MQTT clients."""

    endpoint: str
    lifetime: int
    version: str
    binding: str
    root: str
    objects: tuple[str, ...]
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def queue_mode(self) -> bool:
        """Whether the device sleeps between its messages."""
        return "Q" in self.binding

    def record(self) -> dict[str, Any]:
        """Return ``data`` of the messages ``register`` and ``update``."""
        return self.parameters | {"alternatePath": self.root, "objectList": list(self.objects)}


def register(query: Iterable[str], payload: bytes, limits: Lifetimes) -> Registration:
    """Return the registration of a device. Raises RegistrationRefused."""
    given = _parameters(query)
    endpoint = given.get("ep", "")
    if not endpoint:
        raise RegistrationRefused(BAD_REQUEST, "ep is missing")
    if (
        len(endpoint.encode()) > MAX_ENDPOINT
        or not endpoint.isprintable()
        or _NOT_IN_A_NAME & set(endpoint)
        or (
            endpoint[0] == "$"  # $share and the like, if a topic begins with it
        )
    ):
        raise RegistrationRefused(
            BAD_REQUEST,
            f"ep has more than {MAX_ENDPOINT} bytes, or one of / + # or a control character, or begins with $",
        )
    version = given.get("lwm2m", "")
    if version != "1" and not (version.startswith("1.") and version[2:].isdecimal()):
        raise RegistrationRefused(PRECONDITION_FAILED, "lwm2m is missing, or is not 1 or 1.x")
    lifetime = _lifetime(given, limits)
    root, objects = _objects(payload)
    parameters: dict[str, Any] = {"ep": endpoint, "lt": lifetime, "lwm2m": version}
    parameters |= {name: given[name] for name in ("b", "sms") if name in given}
    return Registration(endpoint, lifetime, version, _binding(given), root, objects, parameters)


def update(before: Registration, query: Iterable[str], payload: bytes, limits: Lifetimes) -> Registration:
    """Return the registration after an update, which contains only the changes. Raises RegistrationRefused."""
    given = _parameters(query)
    parameters = dict(before.parameters)
    changed = before
    if "lt" in given:
        changed = replace(changed, lifetime=_lifetime(given, limits))
        parameters["lt"] = changed.lifetime
    if "b" in given:
        changed = replace(changed, binding=_binding(given))
    if payload:
        root, objects = _objects(payload)
        changed = replace(changed, root=root, objects=objects)
    parameters |= {name: given[name] for name in ("b", "sms") if name in given}
    return replace(changed, parameters=parameters)


def _parameters(query: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in query:
        name, _, value = each.partition("=")
        if name in found:
            raise RegistrationRefused(BAD_REQUEST, f"{name[:20]} is given twice")
        if name != "ep" and len(value) > MAX_VALUE:
            raise RegistrationRefused(BAD_REQUEST, f"{name[:20]} has more than {MAX_VALUE} characters")
        found[name] = value
    return found


def _lifetime(given: dict[str, str], limits: Lifetimes) -> int:
    text = given.get("lt")
    if text is None:
        return max(limits.shortest, min(DEFAULT_LIFETIME, limits.longest))
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise RegistrationRefused(BAD_REQUEST, "lt is not a number of seconds")
    if not limits.shortest <= int(text) <= limits.longest:
        raise RegistrationRefused(
            BAD_REQUEST, f"lt is not from lifetime_min to lifetime_max, {limits.shortest} to {limits.longest}"
        )
    return int(text)


def _binding(given: dict[str, str]) -> str:
    binding = given.get("b", DEFAULT_BINDING)
    if binding not in BINDINGS:
        raise RegistrationRefused(BAD_REQUEST, f"b is not one of {', '.join(sorted(BINDINGS))}")
    return binding


def _objects(payload: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the alternate path and the objects without it."""
    try:
        links = parse(payload.decode())
    except (UnicodeDecodeError, BadLinks) as error:
        raise RegistrationRefused(BAD_REQUEST, f"the list of objects: {str(error)[:100]}") from None
    if len(links) > MAX_OBJECTS:
        raise RegistrationRefused(BAD_REQUEST, f"more than {MAX_OBJECTS} objects and instances")
    roots = [link.target for link in links if "oma.lwm2m" in link.attributes.get("rt", "").split()]
    root = "/" + roots[0].strip("/") if roots else "/"
    objects = [_without(root, link) for link in links if link.target not in roots]
    return root, tuple(objects)


def _without(root: str, link: WebLink) -> str:
    target = "/" + unquote(link.target).strip("/")
    if root != "/" and target.startswith(root + "/"):
        return target[len(root) :]
    return target
