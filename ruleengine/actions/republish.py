"""``republish``: publish a message created from the result of a rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from taipan.broker.config import ZoneSettings
from taipan.broker.core.inspection import Inspection
from taipan.broker.core.outcome import REFUSED, RESERVED, RULE, Outcome
from taipan.broker.mqtt import reason_codes
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import NO_PROPERTIES
from taipan.broker.mqtt.topics import has_wildcard, valid_name
from taipan.broker.session.client_info import ClientInfo

from ..event import Event
from ..events.hops import hops_of, with_hops
from ..functions.function import FunctionError
from ..params import Param, ParamError, Text, one_of
from .action import ActionContext, ActionFailed, ActionType, Row
from .republish_properties import MQTT_TEMPLATE, USER, USER_TEMPLATE, property_templates
from .template import Template, always_reserved

Choice = TypeVar("Choice")

_RETAIN: Final[dict[object, bool]] = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}
_QOS: Final[dict[object, int]] = {0: 0, 1: 1, 2: 2, "0": 0, "1": 1, "2": 2}


class Republish:
    """Publishes through the broker as clients do; the client ID of its messages is the action's id.

    A message that this action has published is not published again by the same action, and a chain of any rules ends
    after ``ruleengine.max_hops`` messages."""

    def __init__(self, context: ActionContext) -> None:
        params = context.params
        self._accept = context.node.accept
        self._broker = context.node.broker
        self._report = context.report
        self._take_hop = context.take_hop
        self._id = context.id
        topic = str(params["target_topic"])
        self._topic = Template(topic)
        if not topic:
            raise ParamError("target_topic", "cannot be empty")
        if has_wildcard(topic):
            raise ParamError("target_topic", "a message cannot be published to a topic with wildcards")
        if not self._topic.placeholders and not valid_name(topic):
            raise ParamError("target_topic", f"{topic[:64]!r} is not a topic")
        if always_reserved(self._topic):
            raise ParamError("target_topic", f"{topic[:64]!r} is reserved for the server")
        self._payload = Template(str(params.get("payload_tmpl", "${payload}")))
        self._qos = _one_of("target_qos", params.get("target_qos", 0), {**_QOS, -1: -1, "-1": -1})
        self._retain = _one_of("target_retain", params.get("target_retain", False), {**_RETAIN, 1: True, 0: False})
        self._properties = property_templates(params)
        self._publisher = ClientInfo(context.node.node, ZoneSettings(), client_id=context.id)

    def run(self, row: Row, event: Event) -> bool:
        source = event.message
        if source is not None and source.publisher is not None and source.publisher.client_id == self._id:
            raise ActionFailed("a loop: the message was published by this action")
        try:
            message = self._message(row, event)
        except (ValueError, FunctionError) as error:
            raise ActionFailed(str(error)) from error
        message.hops = self._take_hop(event)
        if source is not None and source.has_properties and hops_of(source.properties):
            # The message came over a bridge, and may be sent over the next one.
            message.properties = with_hops(message.properties, message.hops)
        inspection = self._broker.inspection
        if inspection is None:
            outcome: Outcome | None = self._accept(message, RULE)
        else:
            outcome = self._ask(inspection, message, row, event)
        if outcome is None:
            return False
        if outcome.code >= REFUSED:
            raise ActionFailed(_failure(message, outcome))
        return True

    def _ask(self, inspection: Inspection, message: Message, row: Row, event: Event) -> Outcome | None:
        """Return the outcome; None: it is reported later."""
        waits = False
        immediate: Outcome | None = None

        def accepted(outcome: Outcome) -> None:
            nonlocal immediate
            if not waits:
                immediate = outcome
            elif outcome.refused:
                self._report.failed(_failure(message, outcome), row, event)
            else:
                self._report.success()

        inspection.accept_later(message, RULE, accepted)
        waits = True
        return immediate

    def close(self) -> None:
        pass

    def _message(self, row: Row, event: Event) -> Message:
        topic = self._topic.render(row)
        if isinstance(topic, bytes):
            raise ValueError("target_topic: the topic is not UTF-8")
        if not valid_name(topic):
            raise ValueError(f"target_topic: {topic[:64]!r} is not a valid topic to publish to")
        source = event.message
        qos, retain = self._qos, self._retain
        if isinstance(qos, Template):
            qos = _chosen("target_qos", qos, row, _QOS)
        if isinstance(retain, Template):
            retain = _chosen("target_retain", retain, row, _RETAIN)
        if qos == -1:
            qos = 0 if source is None else source.qos
        return Message(
            topic,
            self._payload.render_bytes(row),
            qos,
            retain,
            NO_PROPERTIES if self._properties is None else self._properties(row),
            self._publisher,
            event.at if source is None else source.timestamp,
        )


def _failure(message: Message, outcome: Outcome) -> str:
    """Return why the message was refused."""
    if outcome is RESERVED:
        return f"target_topic: {message.topic[:64]!r} is {outcome.detail}"
    if outcome.detail:
        return f"{message.topic[:64]!r}: {outcome.detail} (setting {outcome.setting})"
    return f"the message cannot be delayed: {reason_codes.name(outcome.code)}"


def _one_of(key: str, value: object, choices: Mapping[object, Choice]) -> Choice | Template:
    """Return the value of a fixed choice, or the single placeholder for it. Raises ParamError."""
    if isinstance(value, str) and "${" in value:
        template = Template(value)
        if not template.single:
            raise ParamError(key, "expected a value or exactly one placeholder")
        return template
    try:
        return choices[value]
    except (KeyError, TypeError):
        raise ParamError(key, f"expected one of {one_of(choices)}, or one placeholder") from None


def _chosen(key: str, value: Template, row: Row, choices: Mapping[object, Choice]) -> Choice:
    """Return the choice that the value of a placeholder means. Raises ValueError."""
    found = value.value(row)
    try:
        return choices[found]
    except (KeyError, TypeError):
        raise ValueError(f"{key}: {value.text} has the value {str(found)[:64]}") from None


REPUBLISH: Final = ActionType(
    "republish",
    Text("Republish", "消息重新发布"),
    Text("Publish a message built from the result", "用结果发布一条新消息"),
    Republish,
    (
        Param(
            "target_topic",
            1,
            "string",
            Text("Target Topic", "目的主题"),
            Text("The topic to publish to; placeholders are replaced", "发布到的主题，可使用占位符"),
            required=True,
            default="repub/to/${clientid}",
            insist=True,
        ),
        Param(
            "target_qos",
            2,
            ["number", "string"],
            Text("Target QoS", "目的 QoS"),
            Text(
                "0, 1, 2, one placeholder, or -1 for the QoS of the message",
                "0、1、2、一个占位符，或 -1 表示原消息的 QoS",
            ),
            required=True,
            default=0,
        ),
        Param(
            "target_retain",
            3,
            ["boolean", "string", "number"],
            Text("Target Retain", "目的保留标志"),
            Text("Whether the message is retained, or one placeholder", "是否保留，或一个占位符"),
            default=False,
        ),
        Param(
            "payload_tmpl",
            4,
            "string",
            Text("Payload Template", "消息内容模板"),
            Text("The payload to publish; empty for the whole result as JSON", "消息内容；为空则为整个结果的 JSON"),
            default="${payload}",
            input="textarea",
            parts=True,
        ),
        Param(
            USER,
            5,
            ["object", "string"],
            Text("User Properties", "用户属性"),
            Text("Names and values, or one placeholder for an object of them", "名称与值，或一个代表对象的占位符"),
            schema={},
        ),
        Param(
            USER_TEMPLATE,
            6,
            "array",
            Text("User Properties Template", "用户属性模板"),
            Text(
                "The same as a list of objects with key and value, as in EMQX Enterprise; a name may occur "
                "more than once",
                "同上，以含 key 与 value 的对象列表给出（EMQX 企业版的形式），名称可重复",
            ),
            items={"type": "object", "schema": {}},
        ),
        Param(
            MQTT_TEMPLATE,
            7,
            "array",
            Text("MQTT Properties Template", "MQTT 属性模板"),
            Text(
                "A list of objects with key and value; the key is Payload-Format-Indicator, Message-Expiry-Interval, "
                "Content-Type, Response-Topic or Correlation-Data. A property is left out if its value is one "
                "placeholder that has no value",
                "含 key 与 value 的对象列表；key 为 Payload-Format-Indicator、Message-Expiry-Interval、Content-Type、"
                "Response-Topic 或 Correlation-Data；占位符无值时省略该属性",
            ),
            items={"type": "object", "schema": {}},
        ),
    ),
    category="data_forward",
    order=3,
)
