"""Answers of a device to commands, as JSON for MQTT clients."""

from typing import Any, Final

import msgspec

from .commands import BadCommand, DeviceCommand, named_path
from .content import BadContent, to_content
from .links import split
from .objects import Objects
from .paths import BadPath, parse

CONTENT: Final = 0x45
_SUCCESS: Final = 2
NAMES: Final = {
    0x41: "created", 0x42: "deleted", 0x43: "valid", 0x44: "changed", 0x45: "content", 0x5F: "continue",
    0x80: "bad_request", 0x81: "unauthorized", 0x82: "bad_option", 0x83: "forbidden", 0x84: "not_found",
    0x85: "method_not_allowed", 0x86: "not_acceptable", 0x88: "request_entity_incomplete",
    0x8C: "precondition_failed", 0x8D: "request_entity_too_large", 0x8F: "unsupported_content_format",
    0xA0: "internal_server_error", 0xA1: "not_implemented", 0xA2: "bad_gateway", 0xA3: "service_unavailable",
    0xA4: "gateway_timeout", 0xA5: "proxying_not_supported",
}  # fmt: skip
"""Codes of CoAP as EMQX names them."""
BAD_REQUEST: Final = 0x80
BAD_GATEWAY: Final = 0xA2
UNAVAILABLE: Final = 0xA3
TIMEOUT: Final = 0xA4
TOO_LARGE: Final = 0x8D

NOT_RECEIVED: Final = ("6.01", "reply_not_received")
"""The result of a question about the last answer while there is none."""

Message = dict[str, Any]


def dotted(code: int) -> str:
    """Return 0x45 as ``2.05``."""
    return f"{code >> 5}.{code & 31:02}"


def encode(message: Message) -> bytes:
    """Return the JSON of an answer."""
    return msgspec.json.encode(message)


def answer(
    command: DeviceCommand, code: int, payload: bytes, content_format: int | None, objects: Objects, root: str = "/"
) -> Message:
    """Return the answer to a command. A payload that cannot be translated is answered as a bad request."""
    data: dict[str, Any] = {"reqPath": command.named, "code": dotted(code), "codeMsg": NAMES.get(code, "unknown")}
    if code >> 5 == _SUCCESS:
        try:
            content = _content(command, code, payload, content_format, objects, root)
        except BadContent as error:
            return failure(command, BAD_REQUEST, f"the answer of the device: {error}")
        if content is not None:
            data["content"] = content
    return command.message | {"data": data}


def notification(message: Message, number: int) -> Message:
    """Return a notification in the form of an answer. ``number``: the sequence number of the device."""
    return message | {"msgType": "notify", "seqNum": number}


def _content(
    command: DeviceCommand, code: int, payload: bytes, content_format: int | None, objects: Objects, root: str
) -> Any:
    if code != CONTENT:
        return None
    if command.kind == "discover":
        try:
            return split(payload.decode())
        except UnicodeDecodeError:
            raise BadContent("the links are not UTF-8") from None
    return to_content(command.request.path, content_format, payload, objects, root)


def acknowledged(command: DeviceCommand) -> Message:
    """Return the message that is published when a device has only confirmed that it has received a command."""
    return command.message | {"msgType": "ack"}


def failure(command: DeviceCommand, code: int, reason: str) -> Message:
    """Return the answer to a command that the device has not answered, or not in an understandable form."""
    data = {"reqPath": command.named, "code": dotted(code), "codeMsg": NAMES[code], "reason": reason}
    return command.message | {"data": data}


def bad_command(error: BadCommand) -> Message:
    """Return the answer to a message that is not a command."""
    rest = {name: value for name, value in error.message.items() if name != "data"}
    data = {"code": dotted(BAD_REQUEST), "codeMsg": NAMES[BAD_REQUEST], "reason": str(error)}
    named = named_path(error.message)
    return rest | {"data": {"reqPath": named} | data if named else data}


def too_large(message: Message) -> Message:
    """Return the message that is published in place of an answer that is too large for a packet."""
    short = {name: message[name] for name in ("reqID", "msgType") if name in message}
    reason = "the answer is larger than max_packet_size"
    return short | {"data": {"code": dotted(TOO_LARGE), "codeMsg": NAMES[TOO_LARGE], "reason": reason}}


def shown(kind: str, data: bytes, objects: Objects) -> Message:
    """Return the last answer to a command as the API shows it, from ``data`` of the answer; empty: there is none."""
    if not data:
        code, name = NOT_RECEIVED
        return {"code": code, "codeMsg": name}
    answer: Message = msgspec.json.decode(data)
    answer.pop("reqPath", None)
    if kind == "discover" and "content" in answer:
        answer["content"] = [_resource(each, objects) for each in answer["content"]]
    return answer


def _resource(text: str, objects: Objects) -> Message:
    """Return a link with the data about its resource from the definition."""
    target = text.partition(";")[0].strip("<> ")
    row: Message = {"path": target, "name": objects.name_of(target)}
    try:
        found = objects.resource(parse(target))
    except BadPath:
        found = None
    if found is not None:
        row |= {"name": found.name, "operations": found.operations}
        if found.kind:
            row["dataType"] = found.kind
    return row
