"""``$SYS/brokers/...``: the node's messages about itself, as in EMQX 4.x.

===================================================== ====== ======== ========================================= topic
retain every payload ===================================================== ====== ========
========================================= ``$SYS/brokers`` yes interval node names, joined by commas
``$SYS/brokers/<node>/version``, ``/sysdescr`` yes interval text ``$SYS/brokers/<node>/uptime`` no heartbeat ``1 days, 2
hours, 3 minutes, 4 seconds`` ``$SYS/brokers/<node>/datetime`` no heartbeat ``2026-01-31 23:59:59``, local time
``$SYS/brokers/<node>/stats/connections/count``, ... no interval decimal number
``$SYS/brokers/<node>/metrics/bytes/received``, ... no interval decimal number
``$SYS/brokers/<node>/metrics/refusals/<reason>`` no interval decimal number, once it happened
``$SYS/brokers/<node>/metrics/disconnects/<reason>`` no interval decimal number, once it happened
``$SYS/brokers/<node>/listeners/<name>/accepted``,... no interval decimal number
``$SYS/brokers/<node>/clients/<id>/connected`` no event JSON, QoS 1 ``$SYS/brokers/<node>/clients/<id>/disconnected`` no
event JSON, QoS 1 ===================================================== ====== ========
=========================================

All other messages have QoS 0. In ``<id>`` the characters ``/ + # %`` are percent-encoded. In EMQX a ``/`` creates
levels, so one client could publish in another's name, and ``+`` or ``#`` would make the Topic Name invalid. The payload
contains the unchanged identifier."""

import json
import logging
import time
from collections.abc import Callable
from typing import Final

from ..config import SysTopicsSettings
from ..loop.timers import DatedTimeSource
from ..mqtt.message import Message
from ..session.client_info import ClientInfo
from .metrics import Metrics
from .mosquitto_topics import MosquittoTopics
from .stats import Stats

logger = logging.getLogger(__name__)

SYSDESCR: Final = "Taipan Broker"
_MAX_TOPIC: Final = 65_535  # bytes of UTF-8 that fit a Topic Name
_ESCAPES: Final = str.maketrans({"%": "%25", "/": "%2F", "+": "%2B", "#": "%23"})


def topic_level(client_id: str) -> str:
    """Return a client ID as one level of a Topic Name, unambiguous and reversible."""
    return client_id.translate(_ESCAPES)


def uptime_text(seconds: int) -> str:
    """Return a duration in EMQX's words; a unit appears once the duration reaches it."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    text = f"{second} seconds"
    if minutes:
        text = f"{minute} minutes, {text}"
    if hours:
        text = f"{hour} hours, {text}"
    if days:
        text = f"{days} days, {text}"
    return text


class SysTopics:
    """Publish facts about the node through ``publish``. ``tick`` is a sweep, about once a second; the other methods
    are hooks.

    An interval of 0 disables its group; events of clients depend on neither interval. ``brokers`` returns the names of
    all nodes, by default only this one. ``listeners`` returns the counters of each listener by name. ``wanted``
    returns whether any subscription matches such topics, ``reaches`` whether one matches this topic: events without a
    subscriber are not formatted.
    """

    def __init__(
        self,
        settings: SysTopicsSettings,
        node_name: str,
        publish: Callable[[Message], object],
        metrics: Metrics,
        stats: Stats,
        clock: DatedTimeSource,
        version: str,
        brokers: Callable[[], list[str]] | None = None,
        loop_lag: Callable[[], dict[str, float]] | None = None,
        listeners: Callable[[], dict[str, dict[str, int]]] | None = None,
        reaches: Callable[[str], bool] | None = None,
        wanted: Callable[[], bool] | None = None,
    ) -> None:
        self._interval = settings.interval
        self._heartbeat = settings.heartbeat
        self._node = node_name
        self._publish = publish
        self._metrics = metrics
        self._stats = stats
        self._clock = clock
        self._version = version
        self._brokers = brokers
        self._loop_lag = loop_lag
        self._listeners = listeners
        self._reaches = reaches
        self._wanted = wanted
        self._prefix = f"$SYS/brokers/{topic_level(node_name)}/"
        self._mosquitto = (
            MosquittoTopics(publish, metrics, stats, clock, version, listeners) if settings.mosquitto_names else None
        )
        self._started_at = clock.now()
        self._next_interval = self._next_heartbeat = self._started_at

    def tick(self, now: float) -> None:
        """Publish the topics that are due at ``now`` (Unix seconds). The first tick publishes all topics."""
        if self._heartbeat > 0 and now >= self._next_heartbeat:
            self._next_heartbeat = now + self._heartbeat
            self._send("uptime", uptime_text(int(now - self._started_at)))
            self._send("datetime", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._clock.wall())))
        if self._interval > 0 and now >= self._next_interval:
            self._next_interval = now + self._interval
            names = [self._node] if self._brokers is None else self._brokers()
            self._publish(Message("$SYS/brokers", ",".join(names).encode(), retain=True, timestamp=now))
            self._send("version", self._version, retain=True)
            self._send("sysdescr", SYSDESCR, retain=True)
            self._send_numbers("stats/", self._stats.snapshot())
            self._send_numbers("metrics/", self._metrics.snapshot())
            # topics that only Taipan has
            self._send_numbers("metrics/refusals/", self._metrics.refusals.snapshot())
            self._send_numbers("metrics/disconnects/", self._metrics.disconnects.snapshot())
            if self._listeners is not None:
                for name, counters in self._listeners().items():
                    self._send_numbers(f"listeners/{topic_level(name)}/", counters)
            if self._loop_lag is not None:  # milliseconds
                for name, lag in self._loop_lag().items():
                    self._send("loop_lag/" + name, str(lag))
            if self._mosquitto is not None:
                self._mosquitto.publish_round(now)

    def client_connected(self, client: ClientInfo) -> None:
        """Publish that ``client`` was accepted."""
        topic = self._topic_if_wanted(client, "connected")
        if topic:
            facts: dict[str, object] = {
                "keepalive": client.keep_alive,
                "connack": 0,
                "clean_start": client.clean_start,
                "expiry_interval": client.expiry_interval,
                "connected_at": int((client.connected_at + self._clock.skew) * 1000),
            }
            self._tell(topic, client, facts)

    def client_disconnected(self, client: ClientInfo, reason: str) -> None:
        """Publish that the connection of an accepted ``client`` has ended; ``reason`` as in ``Hooks``."""
        topic = self._topic_if_wanted(client, "disconnected")
        if topic:
            self._tell(topic, client, {"reason": reason, "disconnected_at": int(self._clock.wall() * 1000)})

    def _topic_if_wanted(self, client: ClientInfo, event: str) -> str:
        """Return the topic of ``event``, or an empty string if no subscription matches it."""
        if self._wanted is not None and not self._wanted():
            return ""
        topic = f"{self._prefix}clients/{topic_level(client.client_id)}/{event}"
        if len(topic.encode()) > _MAX_TOPIC:
            logger.info("sys_topic_too_long event=%s client_id_length=%s", event, len(client.client_id))
            return ""
        if self._reaches is not None and not self._reaches(topic):
            return ""
        return topic

    def _tell(self, topic: str, client: ClientInfo, facts: dict[str, object]) -> None:
        now = self._clock.now()
        presence: dict[str, object] = {
            "clientid": client.client_id,
            # EMQX's value for a missing one.
            "username": "undefined" if client.username is None else client.username,
            "ipaddress": client.peer_host,
            "sockport": client.sock_port,
            "proto_name": client.proto_name,
            "proto_ver": client.proto_ver,
            "ts": int(self._clock.wall() * 1000),
            **facts,
        }
        payload = json.dumps(presence, ensure_ascii=False, separators=(",", ":")).encode()
        self._publish(Message(topic, payload, qos=1, timestamp=now))

    def _send_numbers(self, group: str, values: dict[str, int]) -> None:
        for name, value in values.items():
            self._send(group + name.replace(".", "/"), str(value))

    def _send(self, name: str, text: str, retain: bool = False) -> None:
        self._publish(Message(self._prefix + name, text.encode(), retain=retain, timestamp=self._clock.now()))
