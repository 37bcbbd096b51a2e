"""Action: what a rule does with one row of its result; the type that is offered and the instance that runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..delivery.report import ActionFailed as ActionFailed
from ..delivery.report import Report as Report
from ..delivery.report import Row as Row
from ..params import Param, Text, undeclared
from ..records import ActionTypeRecord
from ..resources.resource import NodeContext, Resource

if TYPE_CHECKING:
    from ..event import Event


class Action(Protocol):
    """A running instance. ``run`` is on the publish path: it never waits."""

    def run(self, row: Row, event: "Event") -> bool:
        """True: done. False: taken, and the Report gets the outcome later. Raises ActionFailed."""
        ...

    def close(self) -> None:
        """The rule is deleted or disabled; the resource's buffer still delivers what was taken before."""
        ...


@dataclass(frozen=True, slots=True)
class ActionContext:
    """What an instance is made for, and what it may use.

    ``id`` is the action's, ``params`` are its checked parameters, ``report`` gets the outcome of rows that it took.
    ``resource`` gives the running resource of an id and raises RuleEngineError where there is none. ``take_hop`` gives
    the hops of a message that an event gives rise to and raises ActionFailed where a chain of rules must end.
    """

    id: str
    rule_id: str
    params: dict[str, Any]
    report: Report
    node: NodeContext
    resource: Callable[[str], Resource]
    take_hop: Callable[["Event"], int]


@dataclass(slots=True, eq=False)
class ActionType:
    """What ``GET /actions`` offers. ``create`` checks what only the instance can know and raises ParamError.

    ``resource_types``: names of the types that ``$resource`` may be of; empty: it takes no resource. ``any_params``: it
    has a use for parameters of every name. ``order``: its place in lists; those with the same one are listed by name.
    """

    name: str
    title: Text
    description: Text
    create: Callable[[ActionContext], Action]
    params: tuple[Param, ...] = ()
    resource_types: tuple[str, ...] = ()
    events: str = "$any"
    app: str = "taipan_rule_engine"
    category: str = "debug"
    any_params: bool = False
    order: int = 100

    def undeclared(self, params: Mapping[str, object]) -> list[str]:
        """Return a sentence for each parameter that has no effect."""
        return [] if self.any_params else undeclared(self.name, params, self.params)

    def record(self) -> ActionTypeRecord:
        return ActionTypeRecord(
            name=self.name,
            events=self.events,
            types=list(self.resource_types),
            app=self.app,
            category=self.category,
            params={param.name: param.record() for param in self.params},
            title=self.title,
            description=self.description,
        )
