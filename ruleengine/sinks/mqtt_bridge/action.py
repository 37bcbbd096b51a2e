"""The action ``data_to_mqtt_broker``: sends each row as a message to another broker, through a ``bridge_mqtt``
resource."""

from typing import Final

from taipan.broker.core.delayed_topic import reserved
from taipan.broker.mqtt.topics import has_wildcard, valid_name

from ...actions.action import ActionContext, ActionFailed, ActionType, Row
from ...actions.message_facts import message_facts, order_key
from ...actions.sink_action import to_sink
from ...actions.template import Template, always_reserved
from ...event import Event
from ...params import RESOURCE, Param, ParamError, Text, one_of, resource_param, retry_for_param
from ...resources.sink import SinkRequest, SinkResource
from .resource import Forward, MqttBridge

_INHERITED: Final = "inherited_from_source_msg"
_QOS: Final[dict[str, int | None]] = {_INHERITED: None, "0": 0, "1": 1, "2": 2}
"""None: the QoS of the row's message, which is 0 for an event without one."""


class DataToMqttBroker:
    """Creates the message. RETAIN, and QoS unless ``qos`` is given, are those of the row's message."""

    def __init__(self, context: ActionContext) -> None:
        """Raises ParamError."""
        self._max_hops = context.node.settings.max_hops
        self._resource_id: str = context.params[RESOURCE]
        topic = context.params["forward_topic"]
        if has_wildcard(topic):
            raise ParamError("forward_topic", "a message cannot be published to a topic with wildcards")
        self._topic = Template(topic)
        resource = context.resource(self._resource_id)
        bridge = resource.sink if isinstance(resource, SinkResource) else None
        if isinstance(bridge, MqttBridge) and always_reserved(Template(bridge.mountpoint + topic)):
            raise ParamError("forward_topic", "$SYS is reserved for the other broker's own messages")
        self._payload = Template(context.params["payload_tmpl"])
        qos = context.params.get("qos", _INHERITED)  # a parameter from an older version has none, or any
        if not isinstance(qos, str) or qos not in _QOS:
            raise ParamError("qos", f"expected one of {one_of(_QOS)}")
        self._qos = _QOS[qos]

    def request(self, row: Row, event: Event, sink: MqttBridge) -> SinkRequest:
        facts = message_facts(event)
        rendered = self._topic.render(row) if self._topic.text else facts.topic
        payload = self._payload.render_bytes(row)
        if not isinstance(rendered, str) or not rendered:
            raise ActionFailed("forward_topic: the topic is missing")
        topic = sink.mountpoint + rendered
        if not valid_name(topic) or has_wildcard(topic):
            raise ActionFailed(f"forward_topic: {topic!r} is not a valid topic to publish to")
        if reserved(topic):
            raise ActionFailed(f"forward_topic: {topic!r} is reserved for the other broker's own messages")
        loop = sink.comes_back(topic)
        if loop is not None:
            raise ActionFailed(f"{topic} would come back through the ingress {loop} of {self._resource_id}")
        hops = event.hops + 1
        most = self._max_hops
        if hops > most:
            raise ActionFailed(
                f"a loop: {most} rules and brokers have already handled the message (ruleengine.max_hops)"
            )
        qos = facts.qos if self._qos is None else self._qos
        return sink.request_of(Forward(topic, payload, qos, facts.retain, hops), order_key(event))


TYPE: Final = ActionType(
    "data_to_mqtt_broker",
    Text("Data bridge to MQTT Broker", "桥接数据到 MQTT Broker"),
    Text("Publish each row on another MQTT broker", "将每条数据发布到另一个 MQTT 服务器"),
    to_sink(MqttBridge, DataToMqttBroker),
    (
        resource_param("bridge_mqtt"),
        Param("forward_topic", 1, "string", Text("Forward Topic", "转发消息主题"),
              Text("Template of the topic on that broker, after the mount point; empty: the topic of the message",
                   "对端主题的模板（挂载点之后）；留空则为原消息的主题"), default=""),
        Param("payload_tmpl", 2, "string", Text("Payload Template", "消息内容模板"),
              Text("Template of the payload; empty: the whole row as JSON", "消息内容模板；留空则为整条数据的 JSON"),
              default="", input="textarea", parts=True),
        Param("qos", 3, "string", Text("QoS", "QoS"),
              Text("The QoS of the message on that broker", "对端消息的 QoS"),
              default=_INHERITED, enum=list(_QOS)),
        retry_for_param(4),
    ),
    resource_types=("bridge_mqtt",),
    events="message.publish",
    category="data_forward",
    order=5,
)  # fmt: skip
ACTIONS: Final = (TYPE,)
