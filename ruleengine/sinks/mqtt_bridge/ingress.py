"""Ingress: the messages that a bridge receives from the other broker, and their topics on this node."""

from typing import Final

import msgspec

from taipan.broker.mqtt.topics import has_wildcard, is_shared, valid_filter

from ...actions.template import Template, always_reserved
from ...params import ParamError

_MAX_SUBSCRIPTIONS = 100
_NAMES = frozenset({"topic", "qos", "retain"})
_EXPECTED: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "remote_topic": ((str,), "a string"),
    "qos": ((int,), "0, 1 or 2"),
    "local_topic": ((str,), "a string"),
    "remote_prefix": ((str,), "a string"),
    "retain": ((bool, type(None)), "true or false"),
}


class Ingress(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription on the other broker. ``local_topic`` is a template over ``topic``, ``qos`` and ``retain`` of the
    message; ``topic`` is without ``remote_prefix``, with which ``remote_topic`` begins.

    ``qos``: the maximum for the subscription and the publication. ``retain`` None: as in the message."""

    remote_topic: str
    qos: int = 0
    local_topic: str = "${topic}"
    retain: bool | None = None
    remote_prefix: str = ""

    def local(self, topic: str, qos: int, retain: bool) -> str:
        """Return the topic on this node; empty if it is not valid."""
        inner = topic.removeprefix(self.remote_prefix)
        rendered = Template(self.local_topic).render({"topic": inner, "qos": qos, "retain": retain})
        return rendered if isinstance(rendered, str) else ""


def read_ingress(given: list[object]) -> list[Ingress]:
    """Read the subscriptions in a bridge's configuration. Raises ParamError."""
    if len(given) > _MAX_SUBSCRIPTIONS:
        raise ParamError("ingress", f"more than {_MAX_SUBSCRIPTIONS} subscriptions")
    read = [_read(index, each) for index, each in enumerate(given)]
    for each in read:
        if not valid_filter(each.remote_topic) or is_shared(each.remote_topic):
            raise ParamError("ingress", f"remote_topic {each.remote_topic!r} is not a topic filter")
        if has_wildcard(each.remote_prefix) or not each.remote_topic.startswith(each.remote_prefix):
            raise ParamError("ingress", f"remote_prefix {each.remote_prefix!r} is not a prefix of remote_topic")
        if each.qos not in (0, 1, 2):
            raise ParamError("ingress", "qos must be 0, 1 or 2")
        local = Template(each.local_topic)
        if not each.local_topic or any(char in each.local_topic for char in "#+"):
            raise ParamError("ingress", "local_topic must be a topic without wildcards")
        if always_reserved(local) or (
            each.remote_topic.startswith("$SYS/") and local.text == "${topic}" and not each.remote_prefix
        ):
            raise ParamError(
                "ingress", f"local_topic {each.local_topic!r} is below $SYS, which is reserved for the server"
            )
        if any(len(path) != 1 or path[0] not in _NAMES for path in local.placeholders):
            raise ParamError("ingress", "local_topic accepts only ${topic}, ${qos} and ${retain}")
    return read


def _read(index: int, given: object) -> Ingress:
    if not isinstance(given, dict):
        raise ParamError("ingress", f"[{index}]: expected an object")
    if "remote_topic" not in given:
        raise ParamError("ingress", f"[{index}].remote_topic is missing")
    for key, value in given.items():
        if key not in _EXPECTED:
            raise ParamError("ingress", f"[{index}].{key}: unknown, expected {', '.join(_EXPECTED)}")
        kinds, words = _EXPECTED[key]
        if type(value) not in kinds:
            raise ParamError("ingress", f"[{index}].{key}: expected {words}")
    return Ingress(**given)
