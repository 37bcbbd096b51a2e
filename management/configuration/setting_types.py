"""The types of settings: the type of a configuration key, found by walking through the structs."""

import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Literal

import msgspec

from taipan.broker.config import ListenerSettings, ZoneSettings

from .toml_lines import KeyPath


def type_at(roots: Mapping[str, object], path: KeyPath) -> object:
    """Return the type of the settings field at ``path``, ``None`` if there is no such field.

    ``roots``: the types of the top-level keys."""
    if not path:
        return None
    kind = roots.get(str(path[0]))
    for step in path[1:]:
        struct = struct_of(kind)
        if struct is not None:
            fields = {field.name: field.type for field in fields_of(struct)}
            if struct is ListenerSettings:
                # The keys of its zone are next to its own.
                fields = {field.name: field.type for field in fields_of(ZoneSettings)} | fields
            kind = fields.get(str(step))
            continue
        kind = next((found for member in union_members(kind) if (found := member_type(member)) is not None), None)
    return kind


def union_members(kind: object) -> tuple[object, ...]:
    """Return the members of a union, the types of literals, or the type itself."""
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(part for member in typing.get_args(kind) for part in union_members(member))
    if typing.get_origin(kind) is Literal:
        return tuple({type(value) for value in typing.get_args(kind)})
    return (kind,)


def member_type(kind: object) -> object:
    """Return the type of the members of a list, tuple or dict."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, tuple) and arguments:
        return arguments[0]
    if origin is dict:
        return arguments[1]
    return None


def is_list(kind: object) -> bool:
    return any(typing.get_origin(member) in (list, tuple) for member in union_members(kind))


def struct_of(kind: object) -> type[msgspec.Struct] | None:
    for member in union_members(kind):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            return member
    return None


def struct_in(kind: object) -> type[msgspec.Struct] | None:
    """Return the struct of a field, or of the members of its list."""
    return struct_of(kind) or next(
        (found for member in union_members(kind) if (found := struct_of(member_type(member))) is not None), None
    )


@cache
def fields_of(struct: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a struct with their types; cached because this is slow."""
    return msgspec.structs.fields(struct)


@cache
def table_lists(struct: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields of a struct that are lists of structs."""
    return frozenset(field.name for field in fields_of(struct) if struct_in(field.type) and is_list(field.type))
