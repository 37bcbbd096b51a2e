"""Action: what a rule does with one row of its result; the type that is offered and the instance that runs."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..params import Param, Text

if TYPE_CHECKING:
    from ..engine import RuleEngine
    from ..events import Event

Row = Mapping[str, Any]


class ActionFailed(Exception):
    """This row could not be dealt with; the text says why, in one line."""


class Report(Protocol):
    """Where an action that answers later tells how a row fared."""

    def success(self, count: int = 1) -> None: ...

    def failed(self, reason: str, row: Row | None = None, event: "Event | None" = None, count: int = 1) -> None:
        """Count it, keep it as the last error, and run the fallbacks where there is a ``row``."""
        ...


class Action(Protocol):
    """A running instance. ``run`` is on the publish path: it never waits."""

    def run(self, row: Row, event: "Event") -> bool:
        """True: done. False: taken, and its Report will tell. Raises ActionFailed."""
        ...

    def close(self) -> None:
        """The rule is gone or disabled; what was taken already is still dealt with by the resource's buffer."""
        ...


class ActionPlace:
    """What an instance is made for: ``id`` of the action, its rule, its checked parameters, the engine around it."""

    __slots__ = ("engine", "id", "params", "report", "rule_id")

    def __init__(self, id: str, rule_id: str, params: dict[str, Any], engine: "RuleEngine", report: Report) -> None:
        self.id = id
        self.rule_id = rule_id
        self.params = params
        self.engine = engine
        self.report = report


class ActionType:
    """What ``GET /actions`` offers. ``create`` checks what only the instance can know and raises ParamError.

    ``resource_types``: names of the types that ``$resource`` may be of; empty: it takes no resource.
    """

    __slots__ = ("app", "category", "create", "description", "events", "name", "params", "resource_types", "title")

    def __init__(
        self,
        name: str,
        title: Text,
        description: Text,
        create: Callable[[ActionPlace], Action],
        params: tuple[Param, ...] = (),
        resource_types: tuple[str, ...] = (),
        events: str = "$any",
        app: str = "taipan_rule_engine",
        category: str = "debug",
    ) -> None:
        self.name = name
        self.title = title
        self.description = description
        self.create = create
        self.params = params
        self.resource_types = resource_types
        self.events = events
        self.app = app
        self.category = category

    def record(self) -> dict[str, Any]:
        """Specification, Action."""
        return {
            "name": self.name,
            "for": self.events,
            "types": list(self.resource_types),
            "app": self.app,
            "category": self.category,
            "params": {param.name: param.record() for param in self.params},
            "title": self.title.record(),
            "description": self.description.record(),
        }
