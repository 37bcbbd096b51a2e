"""Alarms: conditions that require an operator's attention, and their history.

As in EMQX 4.x, activation and deactivation are published by MQTT, on ``$SYS/brokers/<node>/alarms/activate`` and
``.../deactivate``: a JSON object, QoS 0, not retained. Times are microseconds since 1970; ``deactivate_at`` is
``"infinity"`` while the alarm is active."""

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from ..loop.timers import DatedTimeSource
from ..mqtt.constants import CONTENT_TYPE
from ..mqtt.message import Message
from .sys_topics import topic_level

logger = logging.getLogger(__name__)

HISTORY: Final = 1000
"""Maximum number of ended alarms that are kept, as in EMQX."""
_NO_DETAILS: Final[Mapping[str, object]] = {}


class Alarm:
    """One alarm. ``activate_at``, ``deactivate_at``: Unix seconds; ``deactivate_at`` is None while the alarm is
    active."""

    __slots__ = ("activate_at", "deactivate_at", "details", "message", "name")

    def __init__(self, name: str, message: str, details: Mapping[str, object], now: float) -> None:
        self.name = name
        self.message = message
        self.details = details
        self.activate_at = now
        self.deactivate_at: float | None = None

    def record(self, now: float, skew: float = 0.0) -> dict[str, object]:
        """Return the alarm as a record of EMQX's HTTP API. ``skew``: as in ``loop.clock``."""
        until = self.deactivate_at
        return {
            "activated": until is None,
            "name": self.name,
            "message": self.message,
            "details": dict(self.details),
            "activate_at": round((self.activate_at + skew) * 1_000_000),
            "deactivate_at": "infinity" if until is None else round((until + skew) * 1_000_000),
            "duration": round(((now if until is None else until) - self.activate_at) * 1_000_000),
        }


class RaisedAlarms:
    """The active alarms by name, and the latest ``history`` of the ended ones. ``observers``: called with each alarm
    that is activated or deactivated."""

    def __init__(
        self, node_name: str, publish: Callable[[Message], object], clock: DatedTimeSource, history: int = HISTORY
    ) -> None:
        self._prefix = f"$SYS/brokers/{topic_level(node_name)}/alarms/"
        self._publish = publish
        self._clock = clock
        self.active: dict[str, Alarm] = {}
        self.observers: list[Callable[[Alarm], None]] = []
        self.history: deque[Alarm] = deque(maxlen=history)

    def activate(self, name: str, message: str, details: Mapping[str, object] = _NO_DETAILS) -> bool:
        """Raise an alarm. Return False if it is already active; it then remains unchanged."""
        if name in self.active:
            return False
        alarm = self.active[name] = Alarm(name, message, details, self._clock.now())
        logger.warning("alarm_activated name=%s message=%s", name, message)
        self._tell("activate", alarm)
        return True

    def amend(self, name: str, details: Mapping[str, object]) -> None:
        """Update the details of an active alarm without publishing it again."""
        alarm = self.active.get(name)
        if alarm is not None:
            alarm.details = details

    def deactivate(self, name: str) -> bool:
        """Deactivate an alarm. Return False if it was not active."""
        alarm = self.active.pop(name, None)
        if alarm is None:
            return False
        alarm.deactivate_at = self._clock.now()
        self.history.append(alarm)
        logger.info("alarm_deactivated name=%s message=%s", name, alarm.message)
        self._tell("deactivate", alarm)
        return True

    def forget(self) -> None:
        """Clear the history; active alarms remain."""
        self.history.clear()

    def records(self) -> list[dict[str, object]]:
        """Return all alarms as records: the active ones first, and within each part the latest first."""
        now = self._clock.now()
        skew = self._clock.skew
        return [each.record(now, skew) for each in [*reversed(self.active.values()), *reversed(self.history)]]

    def _tell(self, event: str, alarm: Alarm) -> None:
        now = self._clock.now()
        payload = json.dumps(alarm.record(now, self._clock.skew), ensure_ascii=False, separators=(",", ":")).encode()
        properties = {CONTENT_TYPE: "application/json"}
        self._publish(Message(self._prefix + event, payload, properties=properties, timestamp=now))
        for observer in self.observers:
            observer(alarm)
