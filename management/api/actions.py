"""/actions: what rules can do with what they select."""

from typing import Any

import msgspec

from ..http.routes import Call, Routes

routes = Routes("Rule actions")


class Words(msgspec.Struct):
    """A short text in two languages."""

    zh: str
    en: str


class ParamDefinition(msgspec.Struct, kw_only=True):
    """One parameter. ``type`` is a name or a list of names that JSON Schema knows, or ``password``, ``file``;
    ``format``: ``url`` or a regular expression; ``range``: the least and the most."""

    type: str | list[str]
    title: Words
    description: Words
    order: int
    required: bool | msgspec.UnsetType = msgspec.UNSET
    format: str | msgspec.UnsetType = msgspec.UNSET
    enum: list[Any] | msgspec.UnsetType = msgspec.UNSET
    default: Any = msgspec.UNSET
    range: list[float] | msgspec.UnsetType = msgspec.UNSET
    schema: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    items: Any = msgspec.UNSET
    input: str | msgspec.UnsetType = msgspec.UNSET


class ActionTypeRecord(msgspec.Struct, kw_only=True):
    """Specification, Action; ``category`` is beyond it."""

    name: str
    types: list[str]
    title: Words
    description: Words
    params: dict[str, ParamDefinition]
    events: str = msgspec.field(name="for")
    app: str
    category: str


@routes.get("/actions", "The actions that rules can have", reply=list[ActionTypeRecord])
def list_actions(call: Call) -> Any:
    return call.operations.rules.actions()


@routes.get("/actions/{name}", "One action", reply=ActionTypeRecord)
def show_action(call: Call) -> Any:
    return call.operations.rules.action(call.path["name"])
