"""The resources below ``/ps``: a topic is a resource whose state is its retained message
(draft-ietf-core-coap-pubsub, as EMQX 4 has it).

A GET subscribes, so that the access rules of MQTT decide what it reads. Only clients that may publish to a topic learn
whether it has a message."""

import re
from typing import TYPE_CHECKING, Final

from ...gateway import GatewayLink
from ...mqtt.constants import CONTENT_TYPE, MESSAGE_EXPIRY_INTERVAL
from ...mqtt.message import Message
from ...mqtt.packets import Properties
from ...mqtt.topics import valid_name
from . import codec
from .codec import DELETE, GET, LINK_FORMAT, POST, PUT
from .exchange import CoapRequest
from .observe import Observation

if TYPE_CHECKING:
    from .conversation import CoapConversation

MAX_DELETED: Final = 1000
"""Maximum number of topics that a DELETE clears; one with more is answered with 4.13, and clears none."""
FORMATS: Final = {
    codec.OCTET_STREAM: "application/octet-stream",
    codec.EXI: "application/exi",
    codec.JSON: "application/json",
}
_NUMBERS: Final = {text: number for number, text in FORMATS.items()}
_TOPIC_LINK: Final = re.compile(rb"\s*<([^<>]+)>\s*(?:;\s*ct\s*=\s*\"?(\d{1,5})\"?\s*)?(?:;[^,]*)?")


class TopicResources:
    """The requests of one client below ``/ps``."""

    __slots__ = ("_conversation", "_link", "_reads")

    def __init__(self, conversation: "CoapConversation", link: GatewayLink) -> None:
        self._conversation = conversation
        self._link = link
        # The topic after topic rewrite -> the requests for its message.
        self._reads: dict[str, list[tuple[CoapRequest, Observation | None]]] = {}

    def serve(self, request: CoapRequest, topic: str) -> None:
        """Answer a request."""
        if request.code == POST and request.content_format == LINK_FORMAT:
            self._create(request, topic)
        elif not valid_name(topic):
            request.answer(codec.BAD_REQUEST, b"not a topic name")
        elif request.code in (PUT, POST):
            self._publish(request, topic)
        elif request.code == DELETE:
            self._delete(request, topic)
        elif request.code != GET:
            request.answer(codec.METHOD_NOT_ALLOWED)
        elif request.observe == 1:
            self._conversation.stop_observing(request, topic)
            request.answer(codec.CONTENT)
        elif request.observe == 0:
            found = self._link.retained(topic, 1)
            content_format = _format(found[0][1]) if found else codec.OCTET_STREAM
            self._conversation.observe(request, topic, content_format, lambda found: self._read(request, topic, found))
        else:
            self._conversation.subscribe(request, topic, lambda: self._read(request, topic, None), 0)

    # To create and to publish

    def _create(self, request: CoapRequest, parent: str) -> None:
        """Answer with the path of the topic: a topic need not be created."""
        found = _TOPIC_LINK.fullmatch(request.payload)
        if found is None:
            request.answer(codec.BAD_REQUEST, b"expected <name>;ct=N")
            return
        try:
            name = found[1].decode().strip("/")
        except UnicodeDecodeError:
            name = ""
        topic = f"{parent}/{name}" if parent else name
        if not name or not valid_name(topic) or (found[2] and int(found[2]) not in FORMATS):
            request.answer(codec.BAD_REQUEST, b"not a topic name, or a format that is not supported")
            return
        options = [(codec.LOCATION_PATH, each.encode()) for each in ("ps", *topic.split("/"))]
        if max(len(value) for _, value in options) > 255:
            request.answer(codec.BAD_REQUEST, b"a level of more than 255 bytes")
            return
        request.answer(codec.CREATED, options=options)

    def _publish(self, request: CoapRequest, topic: str) -> None:
        replaced = self._link.stored(topic)
        stored = None if replaced is None else _format(replaced)
        content_format = request.content_format
        if content_format is None:
            content_format = codec.OCTET_STREAM if stored is None else stored
        if content_format not in FORMATS:
            request.answer(codec.BAD_REQUEST, b"a content format that is not supported")
            return
        if stored not in (None, content_format):
            # A client that may not publish here does not learn that the topic has a message.
            self._conversation.judge(request, [topic], lambda allowed: _answer_conflict(request, allowed[0]))
            return
        properties: Properties = {CONTENT_TYPE: FORMATS[content_format]}
        if request.max_age is not None:
            properties[MESSAGE_EXPIRY_INTERVAL] = request.max_age
        done = codec.CREATED if stored is None else codec.CHANGED
        self._conversation.publish(
            request, topic, lambda code: request.answer(code or done), retain=True, properties=properties
        )

    # To read

    def _read(self, request: CoapRequest, topic: str, observation: Observation | None) -> None:
        """Wait for the retained message of an active subscription, if there is one."""
        self._reads.setdefault(self._link.rewritten(topic), []).append((request, observation))
        self._conversation.ask_session()

    def read(self, topic: str, message: Message) -> bool:
        """Answer the requests that read the topic with its retained message. Return whether there were any."""
        reads = self._reads.pop(topic, None)
        for request, observation in reads or ():
            self._answer(request, topic, observation, message)
        return reads is not None

    def settled(self) -> None:
        """Answer the requests that still wait for a retained message: all messages were delivered, so the one they wait
        for does not exist."""
        reads, self._reads = self._reads, {}
        for topic, each in reads.items():
            for request, observation in each:
                self._answer(request, topic, observation, None)

    def _answer(
        self, request: CoapRequest, topic: str, observation: Observation | None, message: Message | None
    ) -> None:
        if observation is None:
            self._conversation.release(topic)
        options: codec.Options = []
        if observation is not None:
            options.append((codec.OBSERVE, observation.next_sequence()))
        if message is None:
            request.answer(codec.NOT_FOUND if observation is None else codec.CONTENT, options=options)
            return
        content_format = _format(message)
        if request.accept not in (None, content_format):
            if observation is not None:
                self._conversation.end_observation(observation)
            request.answer(codec.NOT_ACCEPTABLE)
            return
        left = message.properties.get(MESSAGE_EXPIRY_INTERVAL)
        if left is not None:
            options.append((codec.MAX_AGE, codec.uint_bytes(left)))
        request.answer(codec.CONTENT, message.payload, content_format, options)

    # To delete

    def _delete(self, request: CoapRequest, topic: str) -> None:
        """Clear the message of a topic, and those of all topics below it, one after the other. Topics that the client
        may not publish to are treated as if they had no message. The same applies to topics that a publication does not
        reach, because a rule rewrites it to another topic."""
        own = self._link.stored(topic)
        topics = [] if own is None else [topic]
        for each, message in self._link.retained(f"{topic}/#", MAX_DELETED + 1):
            if message is not own and self._link.stored(each) is message:
                topics.append(each)

        def judged(allowed: list[bool]) -> None:
            writable = [each for each, may in zip(topics, allowed[1:], strict=True) if may]
            if not writable:
                request.answer(codec.NOT_FOUND if allowed[0] else codec.FORBIDDEN)
            elif len(topics) > MAX_DELETED:
                request.answer(codec.TOO_LARGE, b"more than 1000 topics")
            else:
                self._delete_next(request, writable)

        self._conversation.judge(request, [topic, *topics], judged)

    def _delete_next(self, request: CoapRequest, topics: list[str]) -> None:
        found: int | None = None  # the code that came at once, as with QoS 0
        waits = False

        def done(code: int) -> None:
            nonlocal found
            found = code
            if waits and code:
                request.answer(code)
            elif waits:
                self._delete_next(request, topics)

        while topics and not found:
            found = None
            self._conversation.publish(request, topics.pop(), done, retain=True, payload=b"")
            if found is None:
                waits = True
                return
        request.answer(found or codec.DELETED)


def _answer_conflict(request: CoapRequest, allowed: bool) -> None:
    if allowed:
        request.answer(codec.BAD_REQUEST, b"the topic has another content format")
    else:
        request.answer(codec.FORBIDDEN)


def _format(message: Message) -> int:
    return _NUMBERS.get(message.properties.get(CONTENT_TYPE, ""), codec.OCTET_STREAM)
