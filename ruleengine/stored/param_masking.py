"""Masked: parameters of actions and resources with masked secrets, and the secrets for masks in a change."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from taipan.broker.observability.masking import Masked, mask, restore

from ..actions.action import ActionType
from ..error import WRONG, RuleEngineError
from ..params import Param
from .rows import StoredAction

_TEXT: Final = ("file",)
"""The secret part of a file given with its text; the name of a file is not a secret."""


def shown(params: Mapping[str, object], declared: tuple[Param, ...]) -> dict[str, object]:
    """Return ``params`` without the secrets that the declarations name. An undeclared parameter, such as any of an
    unknown type, is masked depending on its name."""
    known = {param.name: param for param in declared}
    return {name: _shown(name, value, known.get(name)) for name, value in params.items()}


def _shown(name: str, value: object, param: Param | None) -> object:
    if param is None:
        return mask({name: value})[name]
    if param.type == "password":
        return mask({name: value}, (name,))[name]
    if param.parts or _is_file(param):
        return mask(value, _TEXT if _is_file(param) else ())
    return value


def given_back(
    given: Mapping[str, object], stored: Mapping[str, object], declared: tuple[Param, ...]
) -> dict[str, object]:
    """Return ``given`` with each mask replaced by the value in ``stored``. Raises RuleEngineError if there is none."""
    known = {param.name: param for param in declared}
    try:
        return {name: _given_back(name, value, stored.get(name), known.get(name)) for name, value in given.items()}
    except Masked as error:
        raise RuleEngineError(WRONG, str(error)) from None


def _given_back(name: str, given: object, stored: object, param: Param | None) -> object:
    if param is None:
        return restore({name: given}, {name: stored})[name]
    if param.type == "password":
        return restore({name: given}, {name: stored}, (name,))[name]
    if param.parts or _is_file(param):
        return restore(given, stored, _TEXT if _is_file(param) else (), name)
    return given


def actions_given_back(given: object, stored: Sequence[StoredAction], types: Mapping[str, ActionType]) -> Any:
    """Do the same for the actions of a rule; a value that is not a list of actions is returned unchanged."""
    if not isinstance(given, (list, tuple)):
        return given
    return [_action_given_back(each, index, stored, types) for index, each in enumerate(given)]


def _action_given_back(
    given: object, index: int, stored: Sequence[StoredAction], types: Mapping[str, ActionType]
) -> Any:
    if not isinstance(given, Mapping) or not isinstance(given.get("params"), Mapping):
        return given
    kind = types.get(given["name"]) if isinstance(given.get("name"), str) else None
    declared = () if kind is None else kind.params
    before = _counterpart(given, index, stored, declared)
    params = given_back(given["params"], {} if before is None else before.params, declared)
    fallbacks = actions_given_back(given.get("fallbacks"), () if before is None else before.fallbacks, types)
    return {**given, "params": params, **({"fallbacks": fallbacks} if "fallbacks" in given else {})}


def _counterpart(
    given: Mapping[str, object], index: int, stored: Sequence[StoredAction], declared: tuple[Param, ...]
) -> StoredAction | None:
    """Return the stored action that this one was before: one with the same masked parameters, otherwise the one at the
    same index."""
    here = list(stored[index : index + 1])
    same = [each for each in (*here, *stored) if each.name == given.get("name")]
    for each in same:
        if shown(each.params, declared) == given["params"]:
            return each
    return here[0] if here and here[0] in same else None


def _is_file(param: Param) -> bool:
    return param.type in ("file", "binary_file")
