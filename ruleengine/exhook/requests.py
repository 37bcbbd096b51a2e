"""The requests of exhook about clients, sessions and messages."""

from typing import Any

from taipan.broker.access.exhook.messages import CLASSES, client_info, meta, text
from taipan.broker.mqtt import reason_codes
from taipan.broker.mqtt.constants import USER_PROPERTY
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Properties, TopicFilter
from taipan.broker.mqtt.properties import TABLE
from taipan.broker.session.client_info import ClientInfo, protocol_of
from taipan.broker.session.subscription import Subscription


def connection_info(client: ClientInfo) -> Any:
    """Return a client that is not accepted yet."""
    return CLASSES["ConnInfo"](
        node=client.node,
        clientid=text(client.client_id),
        username=text(client.username or ""),
        peerhost=client.peer_host,
        sockport=client.sock_port,
        proto_name="MQIsdp" if (client.proto_name, client.proto_ver) == ("MQTT", 3) else client.proto_name,
        proto_ver=str(client.proto_ver),
        keepalive=client.keep_alive,
    )


def accepted(client: ClientInfo) -> Any:
    return client_info(client, client.username)


def properties_of(properties: Properties) -> list[Any]:
    """Return EMQX's names and the values as text; a User Property keeps its own name."""
    made = CLASSES["Property"]
    found: list[Any] = []
    for identifier, value in properties.items():
        if identifier == USER_PROPERTY:
            found += [made(name=text(name), value=text(each)) for name, each in value]
        elif isinstance(value, bytes):
            found.append(made(name=TABLE[identifier].name, value=value.decode("utf-8", "replace")))
        else:
            found.append(made(name=TABLE[identifier].name, value=text(str(value))))
    return found


def filters_of(filters: list[TopicFilter]) -> list[Any]:
    return [CLASSES["TopicFilter"](name=text(each.filter), qos=each.qos) for each in filters]


def options_of(subscription: Subscription) -> Any:
    return CLASSES["SubOpts"](
        qos=subscription.qos,
        share=text(subscription.group or ""),
        rh=subscription.retain_handling,
        rap=int(subscription.retain_as_published),
        nl=int(subscription.no_local),
    )


def message_of(message: Message, node: str) -> Any:
    """Return a message. Its payload is empty if it is only on disk."""
    publisher = message.publisher
    headers = {"protocol": protocol_of(publisher)}
    if publisher is not None:
        headers |= {"username": text(publisher.username or ""), "peerhost": publisher.peer_host}
    return CLASSES["Message"](
        node=node,
        id=message.id,
        qos=message.qos,
        topic=text(message.topic),
        payload=b"" if message.paged else message.payload,
        timestamp=round(message.timestamp * 1000),
        headers=headers,
        **{"from": "" if publisher is None else text(publisher.client_id)},
    )


def result_of(code: int) -> str:
    """Return the word of a Reason Code of CONNACK."""
    return reason_codes.name(code)


def request(kind: str, node: str, **fields: Any) -> Any:
    """Return a request; ``kind``: the name of its class without ``Request``."""
    return CLASSES[f"{kind}Request"](meta=meta(node), **fields)
