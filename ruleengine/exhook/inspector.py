"""ExhookInspector: asks the providers about messages before the node accepts them, with the hook ``message.publish``.

The providers are asked in the order of ``exhook.servers``; each receives the message as the earlier ones have changed
it."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from taipan.broker.access.exhook.messages import IGNORE, STOP_AND_RETURN
from taipan.broker.core.delayed_topic import PREFIX, reserved
from taipan.broker.core.inspection import Answer
from taipan.broker.core.outcome import NO_SUBSCRIBERS, Outcome
from taipan.broker.mqtt import reason_codes
from taipan.broker.mqtt.constants import MAX_STRING
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.topics import has_wildcard, valid_name
from taipan.broker.server import Server

from .requests import message_of, request

if TYPE_CHECKING:
    from .provider import Provider

MESSAGE_PUBLISH: Final = "message.publish"
_ALLOW: Final = "allow_publish"
NO_ANSWER: Final = Outcome(
    reason_codes.QUOTA_EXCEEDED, "exhook.request_failed_action", "an exhook provider gave no valid answer"
)


class ExhookInspector:
    """The implementation of ``core.inspection.Inspector``."""

    def __init__(self, server: Server, providers: Sequence["Provider"], deny: bool) -> None:
        """``deny``: a message about which a provider gives no answer is refused."""
        self._server = server
        self._node = server.settings.node.name
        self._providers = providers
        self._deny = deny

    def inspects(self, topic: str) -> bool:
        return any(provider.asks(topic) for provider in self._providers)

    async def inspect(self, message: Message) -> Answer:
        self._server.broker.identify(message)
        current = message
        headers: dict[str, str] = {}
        for provider in self._providers:
            if not provider.asks(current.topic):
                continue
            reply = await provider.decision(partial(self._request, current, headers))
            fault = "" if reply is None else _fault(reply)
            if reply is None or fault:
                if fault:
                    provider.bad_answer(fault)
                if self._deny:
                    return NO_ANSWER
                continue
            if reply.type == IGNORE or reply.WhichOneof("value") is None:
                continue
            current = _changed(current, reply.message)
            if reply.message.headers.get(_ALLOW) in ("true", "false"):
                headers[_ALLOW] = reply.message.headers[_ALLOW]
            if headers.get(_ALLOW) == "false":
                provider.stopped(message)
                return NO_SUBSCRIBERS
            if reply.type == STOP_AND_RETURN:
                break
        return current

    def _request(self, message: Message, headers: dict[str, str]) -> Any:
        asked = message_of(message, self._node)
        asked.headers.update(headers)
        return request("MessagePublish", self._node, message=asked)


def _fault(reply: Any) -> str:
    """Return why an answer cannot be used; empty: it can."""
    if reply.type == IGNORE or reply.WhichOneof("value") is None:
        return ""
    if reply.WhichOneof("value") != "message":
        return "bool_result instead of message"
    topic = reply.message.topic
    if not valid_name(topic) or has_wildcard(topic) or len(topic.encode()) > MAX_STRING:
        return f"not a Topic Name: {topic[:64]!r}"
    if reserved(topic) or topic.startswith(PREFIX):
        return f"a topic of the node: {topic[:64]!r}"
    return f"QoS {reply.message.qos}" if reply.message.qos > 2 else ""


def _changed(message: Message, answer: Any) -> Message:
    """Return the message itself if the provider has changed nothing."""
    if (answer.topic, answer.qos, answer.payload) == (message.topic, message.qos, message.payload):
        return message
    made = Message(
        answer.topic,
        answer.payload,
        answer.qos,
        message.retain,
        message.properties,
        message.publisher,
        message.timestamp,
    )
    made.id = message.id
    made.hops = message.hops
    return made
