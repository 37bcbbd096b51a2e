"""``taipan --print-defaults``: every setting with its default as a TOML file, generated from the types of the settings.

The comment above a key describes its type, and contains the comment next to the field in the source."""

import ast
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from taipan.broker.access.registry import written_type
from taipan.broker.config import ListenerSettings, ZoneSettings
from taipan.broker.listener_kinds import LISTENER_KINDS
from taipan.broker.version import product_version
from taipan.ruleengine.config import EngineSettings, RuleEngineSettings, settings_of_sinks

from .config import DEFAULT_LISTENERS, DEFAULT_ZONE, OPTIONAL_TABLES, TABLES
from .setting_types import is_list, struct_in, union_members
from .validation import expected

_WIDTH: Final = 120
_HEAD: Final = """\
Every setting of Taipan {version} with its type and its default. taipan init writes them with longer notes.
A line that begins with "#" and a key or a table is a setting that is not set unless you remove its "#"."""


def as_toml() -> str:
    """Return the whole file."""
    lines = [*_comment(_HEAD.format(version=product_version())), ""]
    for name, struct in TABLES.items():
        off = "#" if name in OPTIONAL_TABLES else ""
        lines += [f"{off}[{name}]", *_keys(struct, f"{name}.", {}, off), ""]
        if name == "node":
            for listener in DEFAULT_LISTENERS:
                lines += ["[[listeners]]", *_keys(ListenerSettings, "listeners.", listener), ""]
            lines += [f"[zones.{DEFAULT_ZONE}]", *_keys(ZoneSettings, f"zones.{DEFAULT_ZONE}.", {}), ""]
    return "\n".join(lines)


def _keys(struct: type[msgspec.Struct], place: str, given: Mapping[str, object], off: str = "") -> Iterator[str]:
    """Yield the keys of a table, its own tables last. ``off``: the prefix of lines that are not active."""
    notes = _notes(struct)
    tables = []
    unused = LISTENER_KINDS[str(given["type"])].unused_keys() if struct is ListenerSettings else {}
    for field in msgspec.structs.fields(struct):
        if struct_in(field.type) is not None:
            tables.append(field)
            continue
        yield from _comment(expected(field.type) + (", required" if field.required else ""))
        for note in notes.get(field.name, ()):
            yield from _comment(note)
        value = given.get(field.name, _default(field))
        if field.name in unused:
            yield f"#{field.name} = {toml_value(value)}"
        elif value is None:
            yield f"#{field.name} = {toml_value(_example(field.type))}"
        else:
            yield f"{off}{field.name} = {toml_value(value)}"
    for field in tables:
        inner = struct_in(field.type)
        assert inner is not None
        brackets = ("[[", "]]") if is_list(field.type) else ("[", "]")
        yield ""
        for note in notes.get(field.name, ()):
            yield from _comment(note)
        yield f"#{brackets[0]}{place}{field.name}{brackets[1]}"
        yield from _keys(inner, f"{place}{field.name}.", {}, "#")


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return _example(field.type) if field.default is msgspec.NODEFAULT else field.default


def _example(kind: object) -> object:
    """Return a value that the type allows, for a key without a default."""
    members = [each for each in union_members(kind) if each is not type(None)]
    value: object
    for value in ("", False, 1, 1.0, [1, 1.0], [], {}):
        if type(value) in members:
            return value
        try:
            return msgspec.convert(value, kind, strict=True)
        except msgspec.ValidationError:
            continue
    raise TypeError(f"no example of {kind}")


def toml_value(value: object) -> str:
    """Return a value in TOML."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{json.dumps(key, ensure_ascii=False)} = {toml_value(each)}" for key, each in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _comment(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from (f"# {each}" for each in textwrap.wrap(line, _WIDTH - 2))


def _notes(struct: type[msgspec.Struct]) -> dict[str, list[str]]:
    """Return the comments of each field: the lines directly above it, and the comment after it."""
    # A struct may inherit fields.
    written = [each for each in reversed(written_type(struct).__mro__) if msgspec.Struct in each.__mro__[1:]]
    if struct is RuleEngineSettings:  # the struct inherits from these
        written = [EngineSettings, *settings_of_sinks()]
    return {name: lines for each in written for name, lines in _notes_in_source(each).items()}


def _notes_in_source(struct: type[msgspec.Struct]) -> dict[str, list[str]]:
    source = textwrap.dedent(inspect.getsource(struct))
    comments = {
        token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    [tree] = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            first = node.lineno
            while comments.get(first - 1, ("", False))[1]:
                first -= 1
            above = " ".join(comments[line][0] for line in range(first, node.lineno))
            behind = [comments[line][0] for line in range(node.lineno, (node.end_lineno or 0) + 1) if line in comments]
            found[node.target.id] = [*([above] if above else []), *behind]
    return found
