"""Event: one event of the broker, as input for rules and actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from taipan.broker.mqtt.message import Message
from taipan.broker.session.client_info import ClientInfo

from .events.columns import Columns
from .events.hops import hops_of
from .params import Text
from .records import RuleEventRecord

Maker = Callable[["Event"], object]

_NO_FACTS: Final[Mapping[str, object]] = {}


@dataclass(slots=True)
class EventEnvironment:
    """The data that columns need in addition to the event: the node's name, randomness for message identifiers, and the
    difference between dates and times (``taipan.broker.loop.clock``)."""

    node: str
    rng: Random
    skew: Callable[[], float] = lambda: 0.0


@dataclass(slots=True, eq=False)
class EventKind:
    """One kind of event: the ``topic`` by which FROM names it, its columns and how each is computed.

    ``name`` is the value of the column ``event``. ``examples`` replace columns that a test does not provide."""

    topic: str
    name: str
    title: Text
    description: Text
    sql_example: str
    makers: Mapping[str, Maker]
    examples: Mapping[str, Any]

    def record(self) -> RuleEventRecord:
        return RuleEventRecord(
            self.topic, self.title, self.description, list(self.makers), dict(self.examples), self.sql_example
        )


class Event:
    """One event. ``client`` is its subject (the receiver of a delivery), ``message`` the message, if there is one;
    ``facts`` are further arguments of the hook; ``at`` is in Unix seconds."""

    __slots__ = ("_columns", "at", "client", "environment", "facts", "kind", "message")

    def __init__(
        self,
        kind: EventKind,
        environment: EventEnvironment,
        at: float,
        client: ClientInfo | None = None,
        message: Message | None = None,
        facts: Mapping[str, object] = _NO_FACTS,
    ) -> None:
        self.kind = kind
        self.environment = environment
        self.at = at
        self.client = client
        self.message = message
        self.facts = facts
        self._columns: Columns | None = None

    @property
    def columns(self) -> Columns:
        """The columns, computed when they are read. All rules share this object."""
        if self._columns is None:
            self._columns = Columns({}, self.kind.makers, self)
        return self._columns

    @property
    def hops(self) -> int:
        """The number of republish actions and bridges that the message has passed."""
        message = self.message
        if message is None:
            return 0
        return max(message.hops, hops_of(message.properties)) if message.has_properties else message.hops
