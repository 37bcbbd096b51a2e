"""The bodies of the web hook plugin: the members of EMQX 4's ``emqx_web_hook``, for each event."""

import base64
from collections.abc import Callable
from typing import Any, Final

from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import TopicFilter
from taipan.broker.session.client_info import ClientInfo

Body = dict[str, Any]
Encode = Callable[[bytes], str]

_BASE62: Final = [*map(chr, range(65, 91)), *map(chr, range(97, 123)), *map(chr, range(48, 57)), "9A", "9B", "9C"]


def base62(data: bytes) -> str:
    """Return bytes in EMQX's base 62: groups of six bits as in Base64, but the last three of its characters are ``9A``,
    ``9B`` and ``9C``. The bits that are left at the end are a number of their own."""
    left = len(data) % 3
    whole = base64.b64encode(data[: len(data) - left]).decode()
    text = whole.replace("9", "9A").replace("+", "9B").replace("/", "9C")
    if left:
        number, bits = int.from_bytes(data[-left:]), left * 8
        for taken in range(6, bits, 6):
            text += _BASE62[number >> (bits - taken) & 63]
        text += _BASE62[number & ((1 << bits % 6) - 1)]
    return text


def plain(data: bytes) -> str:
    """Return the text; bytes that are not UTF-8 are replaced."""
    return data.decode("utf-8", "replace")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


ENCODINGS: Final[dict[str, Encode]] = {"plain": plain, "base62": base62, "base64": _base64}
"""By ``encoding_of_payload_field``."""


def milliseconds(seconds: float) -> int:
    """``seconds``: a Unix time."""
    return int(seconds * 1000)


def client(action: str, node: str, info: ClientInfo) -> Body:
    """The members that all events of a client have."""
    return {"action": action, "node": node, "clientid": info.client_id, "username": info.username}


def connection(action: str, node: str, info: ClientInfo) -> Body:
    """Return the body of ``client_connect``, ``client_connack`` or ``client_connected``."""
    return client(action, node, info) | {
        "ipaddress": info.peer_host,
        "keepalive": info.keep_alive,
        "proto_ver": info.proto_ver,
    }


def options(entry: TopicFilter) -> Body:
    """``opts`` of a filter of SUBSCRIBE."""
    return {
        "qos": entry.qos,
        "nl": int(entry.no_local),
        "rap": int(entry.retain_as_published),
        "rh": entry.retain_handling,
    }


def message(body: Body, message: Message, encode: Encode) -> Body:
    """Add the members of a message. Its payload is ``null`` if it is only on disk."""
    publisher = message.publisher
    return body | {
        "from_client_id": None if publisher is None else publisher.client_id,
        "from_username": None if publisher is None else publisher.username,
        "topic": message.topic,
        "qos": message.qos,
        "retain": message.retain,
        "payload": None if message.paged else encode(message.payload),
        "ts": milliseconds(message.timestamp),
    }
