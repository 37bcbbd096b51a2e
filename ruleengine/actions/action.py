"""Action: an operation on one row of a rule's result; the type that is offered and the instance that runs."""

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
        """Run the action for a row. Return True if it is done, False if the row was accepted and the Report receives
        the outcome later. Raises ActionFailed."""
        ...

    def close(self) -> None:
        """End the instance because its rule was deleted or disabled; the resource's buffer still delivers the accepted
        rows."""
        ...


@dataclass(frozen=True, slots=True)
class ActionContext:
    """The data of an instance, and the parts of the node that it may use.

    ``id`` is the action's, ``params`` are its checked parameters, ``report`` receives the outcome of accepted rows.
    ``resource`` returns the running resource with an id and raises RuleEngineError if there is none. ``take_hop``
    returns the hops of a message that an event causes, and raises ActionFailed if a chain of rules has to end."""

    id: str
    rule_id: str
    params: dict[str, Any]
    report: Report
    node: NodeContext
    resource: Callable[[str], Resource]
    take_hop: Callable[["Event"], int]


@dataclass(slots=True, eq=False)
class ActionType:
    """An entry of ``GET /actions``. ``create`` checks what only the instance can check, and raises ParamError.

    ``resource_types``: types that ``$resource`` may have; empty: the action uses no resource. ``any_params``: it uses
    parameters of any name. ``order``: its position in lists; types with the same position are listed by name."""

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
