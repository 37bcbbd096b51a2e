"""Resource: a connection that actions share; the type that is offered and the instance that runs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..params import Param, Text

if TYPE_CHECKING:
    from ..engine import RuleEngine


class ResourceError(Exception):
    """The resource cannot be reached or used; the text says why, in one line."""


class Resource(Protocol):
    """A running instance: it connects on its own, tells whether it is alive, and tries again while it is not."""

    @property
    def alive(self) -> bool: ...

    @property
    def status(self) -> dict[str, Any]:
        """Further figures of its own: what waits in its buffer, what was dropped and why."""
        ...

    def start(self) -> None:
        """Begin to connect; never waits."""
        ...

    async def test(self) -> None:
        """Try once whether it can be reached. Raises ResourceError."""
        ...

    async def close(self) -> None:
        """Stop for good, within seconds; what is buffered on disk stays there for a resource of the same id."""
        ...


class ResourcePlace:
    """What an instance is made for: ``id`` of the resource, its checked configuration, the engine around it."""

    __slots__ = ("config", "engine", "id", "on_alive")

    def __init__(self, id: str, config: dict[str, Any], engine: "RuleEngine", on_alive: Callable[[bool], None]) -> None:
        self.id = id
        self.config = config
        self.engine = engine
        self.on_alive = on_alive  # told each time that liveness changes


class ResourceType:
    """What ``GET /resource_types`` offers. ``create`` raises ParamError for what does not go together."""

    __slots__ = ("create", "description", "name", "params", "provider", "title")

    def __init__(
        self,
        name: str,
        title: Text,
        description: Text,
        create: Callable[[ResourcePlace], Resource],
        params: tuple[Param, ...],
        provider: str = "taipan_rule_engine",
    ) -> None:
        self.name = name
        self.title = title
        self.description = description
        self.create = create
        self.params = params
        self.provider = provider

    def record(self) -> dict[str, Any]:
        """Specification, Resource type."""
        return {
            "name": self.name,
            "provider": self.provider,
            "title": self.title.record(),
            "description": self.description.record(),
            "params": {param.name: param.record() for param in self.params},
        }
