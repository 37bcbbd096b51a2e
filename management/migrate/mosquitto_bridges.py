"""Bridges of Mosquitto, as resources of the type ``bridge_mqtt`` and rules that send to them."""

import json
import os
import socket
from collections.abc import Callable
from typing import Any, Final

import msgspec

from taipan.broker.mqtt.topics import valid_filter, valid_name

from .mosquitto_files import Directive
from .report import MigrationReport
from .scratch_engine import Record

_VERSIONS: Final = {"mqttv31": "mqttv3", "mqttv311": "mqttv4", "mqttv50": "mqttv5"}
_KEYS: Final = frozenset({
    "address", "addresses", "topic", "cleansession", "clientid", "remote_clientid", "idle_timeout",
    "keepalive_interval", "local_clientid", "local_password", "local_username", "local_cleansession", "notifications",
    "notifications_local_only", "notification_topic", "password", "remote_password", "username", "remote_username",
    "restart_timeout", "round_robin", "start_type", "threshold", "try_private", "max_readable_messages",
})  # fmt: skip
_LEFT: Final = {
    "bridge_attempt_unsubscribe": "a bridge never unsubscribes from a filter that it has not subscribed to",
    "bridge_bind_address": "the system chooses the address",
    "bridge_max_packet_size": "packets of up to 16 MiB are accepted",
    "bridge_max_topic_alias": "a bridge uses no topic aliases",
    "bridge_outgoing_retain": "messages keep their RETAIN flag",
    "bridge_alpn": "a bridge does not use ALPN",
    "bridge_require_ocsp": "OCSP is not requested",
    "bridge_tls_version": "TLS 1.2 and 1.3 are supported",
    "cleansession": "outgoing messages are queued here; the session on the other broker is persistent if"
    " anything is fetched",
    "idle_timeout": "the bridge is always connected",
    "local_clientid": "a bridge is not a client of its own node",
    "local_cleansession": "a bridge is not a client of its own node",
    "local_password": "a bridge is not a client of its own node",
    "local_username": "a bridge is not a client of its own node",
    "notifications": "no topic reports whether a bridge is connected: see GET /resources/{id} and its alarm",
    "notifications_local_only": "no topic reports whether a bridge is connected: see GET /resources/{id} and its alarm",
    "notification_topic": "no topic reports whether a bridge is connected: see GET /resources/{id} and its alarm",
    "round_robin": "a bridge has one address",
    "start_type": "the bridge is always connected",
    "threshold": "the bridge is always connected",
    "max_readable_messages": "the queue is limited by ruleengine.buffer_messages",
}


class Bridge(msgspec.Struct):
    name: str
    place: str
    lines: list[Directive]

    def takes(self, key: str) -> bool:
        """Return whether a line with this key belongs to the current bridge."""
        return key in _KEYS or key.startswith("bridge_")


class _Topic(msgspec.Struct):
    """One line ``topic``: the part ``pattern`` of a topic, with wildcards, is the same between the prefixes ``local``
    and ``remote``."""

    place: str
    text: str
    pattern: str
    direction: str
    qos: int
    local: str
    remote: str


def bridge_records(
    bridge: Bridge, report: MigrationReport, file_of: Callable[[str], str]
) -> tuple[list[tuple[str, Record]], list[tuple[str, Record]]]:
    """Return the resource and the rules of one bridge, each with its place."""
    config: dict[str, Any] = {
        "pool_size": 1, "append": False, "mountpoint": "", "proto_ver": "mqttv4", "keepalive": "60s",
        "reconnect_interval": "30s", "clientid": f"{socket.gethostname()}.{bridge.name}", "bridge_mode": True,
    }  # fmt: skip
    topics: list[_Topic] = []
    for line in bridge.lines:
        _take(line, config, topics, report, file_of)
    if "address" not in config:
        report.wrong(bridge.place, f"connection {bridge.name}", "no address")
        return [], []
    if config["proto_ver"] == "mqttv5":
        config["bridge_mode"] = False
    resource_id = f"resource:{bridge.name}"
    ingress: list[dict[str, Any]] = []
    rules: list[tuple[str, Record]] = []
    for number, topic in enumerate(topics):
        if topic.direction == "both":
            why = (
                "messages are only sent, not fetched: this bridge uses two connections, and messages that it"
                " sends would come back"
            )
            report.changed(topic.place, f"topic {topic.text}", why)
        if topic.direction in ("out", "both"):
            rule_id = f"rule:{bridge.name}-{number}"
            rules.append((topic.place, _rule(rule_id, resource_id, topic)))
            report.carried(topic.place, f"topic {topic.text}", f"the rule {rule_id}")
            if topic.qos < 2:
                report.changed(topic.place, f"QoS {topic.qos} of {topic.text}", "a message goes out with its own QoS")
        else:
            ingress.append(
                {
                    "remote_topic": topic.remote + topic.pattern,
                    "qos": topic.qos,
                    "local_topic": topic.local + "${topic}",
                    "remote_prefix": topic.remote,
                }
            )
            report.carried(topic.place, f"topic {topic.text}", f"ingress of {resource_id}")
    if ingress:
        config["ingress"] = ingress
    if ingress and rules and config["bridge_mode"]:
        # The other broker does not send a message back over the connection it came from, but here there are two
        # connections.
        config["bridge_mode"] = False
        why = (
            "bridge_mode = false, since the bridge sends and fetches: messages that would be fetched again are not sent"
        )
        report.changed(bridge.place, f"try_private of {bridge.name}", why)
    report.carried(bridge.place, f"connection {bridge.name}", f"the resource {resource_id}")
    description = f"connection {bridge.name} of Mosquitto"
    record = {"id": resource_id, "type": "bridge_mqtt", "config": config, "description": description}
    return [(bridge.place, record)], rules


def _take(
    line: Directive,
    config: dict[str, Any],
    topics: list[_Topic],
    report: MigrationReport,
    file_of: Callable[[str], str],
) -> None:
    key, value = line.key, line.value
    now = ""
    if key in ("address", "addresses"):
        first, *more = value.split()
        config["address"] = _address(first)
        for each in more:
            report.left_out(line.place, f"{key} {each}", "a bridge has one address; put the others behind one hostname")
    elif key == "topic":
        topic = _topic(line, report)
        if topic is not None:
            topics.append(topic)
        return
    elif key in ("remote_clientid", "clientid"):
        config["clientid"] = value
        report.changed(line.place, f"{key} {value}", f"{value}:1 sends, and {value}:in fetches, if anything is fetched")
        return
    elif key in ("remote_username", "username", "remote_password", "password"):
        config[key.removeprefix("remote_")] = value
    elif key == "bridge_protocol_version":
        if value not in _VERSIONS:
            report.wrong(line.place, f"{key} {value}", f"expected one of {', '.join(_VERSIONS)}")
            return
        config["proto_ver"] = _VERSIONS[value]
    elif key == "keepalive_interval":
        config["keepalive"] = f"{value}s"
    elif key == "restart_timeout":
        config["reconnect_interval"] = f"{value.split()[-1]}s"
        now = "this is the longest pause; the first attempts are earlier"
    elif key == "try_private":
        config["bridge_mode"] = value in ("true", "1")
    elif key in ("bridge_cafile", "bridge_certfile", "bridge_keyfile"):
        config["ssl"] = True
        config.setdefault("verify", True)
        path = file_of(value)
        name = {"bridge_cafile": "cacertfile"}.get(key, key.removeprefix("bridge_"))
        config[name] = path
        if not os.access(path, os.R_OK):
            report.wrong(line.place, f"{key} {value}", "the file does not exist or cannot be read")
    elif key == "bridge_capath":
        config["ssl"] = True
        config.setdefault("verify", True)
        report.changed(line.place, f"{key} {value}", "the system's authorities are used, or those of bridge_cafile")
        return
    elif key == "bridge_insecure":
        if value in ("true", "1"):
            config["server_name_indication"] = "disable"
    elif key in ("bridge_psk", "bridge_identity"):
        report.wrong(line.place, key, "pre-shared keys are not supported; give the bridge certificates")
        return
    else:
        report.left_out(line.place, f"{key} {value}", _LEFT.get(key, "not known"))
        return
    report.carried(line.place, f"{key} {value}", now)


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    return text if colon and port.isdecimal() and host else f"{text}:1883"


def _topic(line: Directive, report: MigrationReport) -> _Topic | None:
    words = [word[1:-1] if len(word) > 1 and word[0] == word[-1] == '"' else word for word in line.value.split()]
    pattern, *rest = words or [""]
    direction = rest[0] if rest else "out"
    qos = rest[1] if len(rest) > 1 else "0"
    local = rest[2] if len(rest) > 2 else ""
    remote = rest[3] if len(rest) > 3 else ""
    made = _Topic(line.place, line.value, pattern, direction, 0, local, remote)
    if direction not in ("in", "out", "both") or qos not in ("0", "1", "2") or len(rest) > 4:
        report.wrong(line.place, f"topic {line.value}", "expected a pattern, in, out or both, a QoS, and two prefixes")
        return None
    made.qos = int(qos)
    for prefix in (local, remote):
        if prefix and not valid_name(prefix):
            report.wrong(line.place, f"topic {line.value}", f"{prefix} is not a topic prefix")
            return None
    if not valid_filter(local + pattern) or not valid_filter(remote + pattern):
        report.wrong(line.place, f"topic {line.value}", "not a topic filter")
        return None
    return made


def _rule(rule_id: str, resource_id: str, topic: _Topic) -> Record:
    """SQL removes the local prefix from a topic, the action prepends the remote one."""
    column = "topic as target"
    if topic.local:
        column = f"substr(topic, {len(topic.local)}) as target"
    source = json.dumps(topic.local + topic.pattern, ensure_ascii=False)
    return {
        "id": rule_id,
        "rawsql": f"SELECT payload, {column} FROM {source}",
        "actions": [
            {
                "name": "data_to_mqtt_broker",
                "args": {
                    "$resource": resource_id,
                    "forward_topic": topic.remote + "${target}",
                    "payload_tmpl": "${payload}",
                },
            }
        ],
        "description": f"topic {topic.text} of a bridge of Mosquitto",
    }
