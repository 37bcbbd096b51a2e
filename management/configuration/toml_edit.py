"""Changing single keys of a TOML document. Comments, order and spacing of everything else stay.

tomlkit changes the keys of one section, without its header: a whole document it may write in another order."""

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

from taipan.broker.observability.masking import MASK

from .toml_lines import KeyPath, Section, sections

NEW_SECRET: Final = f"{MASK} (new)"
"""The text that a diff shows in place of a changed secret."""
_COMMENTED_OUT: Final = re.compile(r"#.*=.*")
_BY_HAND: Final = "this file can only be changed by hand"


class EditError(ValueError):
    """The document cannot be changed in this way. ``str(error)`` is one line for the operator."""


class KeyChange(NamedTuple):
    """A key and its new value: text, a number, a boolean, or a list or dict of these. None: the key is deleted."""

    path: KeyPath
    value: Any


class MaskRules(NamedTuple):
    """``shown``: the value of a setting as it may be shown. ``is_table``: whether the key has settings below it."""

    shown: Callable[[KeyPath, Any], Any]
    is_table: Callable[[KeyPath], bool]


def edit(text: str, changes: Sequence[KeyChange]) -> str:
    """Return the document with these changes. Raises EditError, also if anything else would change."""
    edited = text.replace("\r\n", "\n")
    ends = "\r\n" if edited != text else "\n"
    if edited.replace("\n", ends) != text:
        raise EditError(f"{_BY_HAND}: some of its lines end with CR LF, others with LF")
    wanted = tomllib.loads(text)
    try:
        for change in changes:
            edited = _edited(edited, change)
            _apply(wanted, change.path, change.value)
        made = tomllib.loads(edited)
    except (TypeError, RecursionError, tomllib.TOMLDecodeError) as error:
        raise EditError(f"{_BY_HAND}: {error}") from None
    if _without_empty(made) != _without_empty(wanted):
        raise EditError(f"{_BY_HAND}: another key would change, too")
    return edited.replace("\n", ends)


def masked_diff(name: str, before: str, after: str, rules: MaskRules, changed: Sequence[KeyPath] = ()) -> str:
    """Return a unified diff of two versions of a document, without secrets; empty if nothing has changed.

    ``changed``: the keys whose secrets are new. Settings that are commented out are not shown either."""
    old, new = _masked(before, rules, ()).splitlines(), _masked(after, rules, changed).splitlines()
    lines = difflib.unified_diff(old, new, name, f"{name} (new)", lineterm="")
    return "\n".join(_COMMENTED_OUT.sub(f"# {MASK}", line) for line in lines)


def _edited(text: str, change: KeyChange) -> str:
    """Change a key. One that the document lacks is added to its table, and a missing table after the one above it."""
    path = change.path
    above = [each for each in sections(text) if each.path == path[: len(each.path)] and len(each.path) < len(path)]
    nearest = max(above, key=lambda each: len(each.path))
    missing = path[len(nearest.path) :]
    if len(missing) == 1 or missing[0] in tomllib.loads(text[nearest.start : nearest.end]):
        return _with_key(text, nearest, path, change.value)
    if change.value is None:
        return text
    for position, step in enumerate(missing):
        if isinstance(step, int):
            raise EditError(f"{_dotted(path)}: the file has no {_dotted(path[: len(nearest.path) + position + 1])}")
    end = nearest.end if nearest.path else len(text)
    end -= len(_about_next(text[nearest.start : nearest.end])) if nearest.path else 0
    body, rest = text[:end].rstrip("\n"), text[end:].lstrip("\n")
    table = f"[{_header(path[:-1])}]\n{_changed_keys('', path[-1:], change.value)}"
    return (f"{body}\n\n" if body else "") + table + (f"\n{rest}" if rest else "")


def _with_key(text: str, section: Section, path: KeyPath, value: Any) -> str:
    keys = text[section.start : section.end]
    rest = _about_next(keys)
    kept = keys.removesuffix(rest)
    if kept and not kept.endswith("\n"):
        kept += "\n"
    edited = _changed_keys(kept, path[len(section.path) :], value)
    before = text[: section.start]
    if before and not before.endswith("\n"):
        before += "\n"
    return before + edited + rest + text[section.end :]


def _about_next(keys: str) -> str:
    """Return the end of a section that is about the header after it: empty lines, and comments after an empty line."""
    found = re.search(r"(?:(?<=\n)|\A)[ \t]*\n(?:[ \t]*(?:#[^\n]*)?(?:\n|\Z))*\Z", keys)
    return found[0] if found is not None else ""


def _changed_keys(keys: str, path: KeyPath, value: Any) -> str:
    """Return the keys of one table, of which one is changed."""
    import tomlkit  # imported here, because only a node whose settings are changed needs it
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(keys)
        _apply(document, path, value)
        return tomlkit.dumps(document)
    except TOMLKitError as error:
        raise EditError(f"{_BY_HAND}: {error}") from None


def _apply(document: Any, path: KeyPath, value: Any) -> None:
    """Change a key of a tomlkit document, or of the data of tomllib."""
    *above, last = path
    node: Any = document
    for position, step in enumerate(above):
        if isinstance(step, int):
            if not isinstance(node, list) or step >= len(node):
                raise EditError(f"{_dotted(path)}: the file has no {_dotted(path[: position + 1])}")
        elif not isinstance(node, MutableMapping):
            raise EditError(f"{_dotted(path)}: {_dotted(path[:position])} is not a table in the file")
        elif step not in node:
            if value is None:
                return
            if isinstance(path[position + 1], int):
                raise EditError(f"{_dotted(path)}: the file has no {_dotted(path[: position + 1])}")
            node[step] = _new_table(node)
        node = node[step]
    if not isinstance(node, MutableMapping) or isinstance(last, int):
        raise EditError(f"{_dotted(path)}: this is not a key of a table in the file")
    if value is not None:
        node[last] = value if type(document) is dict else _item(value)
    elif last in node:
        del node[last]


def _item(value: Any) -> Any:
    """Return a value of tomlkit in which dicts are tables in braces, not tables with headers."""
    import tomlkit

    if isinstance(value, dict):
        table = tomlkit.inline_table()
        for key, each in value.items():
            table[key] = _item(each)
        return table
    if isinstance(value, list):
        array = tomlkit.array()
        for each in value:
            array.append(_item(each))
        return array
    return value


def _new_table(node: Any) -> Any:
    if type(node) is dict:
        return {}
    import tomlkit

    return tomlkit.inline_table()


def _header(path: KeyPath) -> str:
    """Return the name of a table, quoted as TOML requires. In a header, members of a list have no number."""
    import tomlkit

    return ".".join(tomlkit.key(step).as_string() for step in path if isinstance(step, str))


def _masked(text: str, rules: MaskRules, changed: Sequence[KeyPath]) -> str:
    import tomlkit

    def walk(node: Any, path: KeyPath) -> None:
        for key in range(len(node)) if isinstance(node, list) else list(node):
            place = (*path, key)
            value = node[key]
            if isinstance(value, (Mapping, list)) and rules.is_table(place):
                walk(value, place)
                continue
            plain = value.unwrap() if hasattr(value, "unwrap") else value
            shown = rules.shown(place, plain)
            if place in changed and shown != plain:
                node[key] = NEW_SECRET
            else:
                _overwrite(node, key, plain, shown)

    text = text.replace("\r\n", "\n")
    found, at = "", 0
    for section in sections(text):
        document = tomlkit.parse(text[section.start : section.end])
        # A header may be inside of a setting that is a table itself.
        outer = next((end for end in range(1, len(section.path)) if not rules.is_table(section.path[:end])), None)
        if outer is None and (not section.path or rules.is_table(section.path)):
            walk(document, section.path)
        else:
            end = len(section.path) if outer is None else outer
            plain: Any = document.unwrap()
            wrapped = plain
            for step in reversed(section.path[end:]):
                wrapped = {step: wrapped} if isinstance(step, str) else [wrapped]
            shown = rules.shown(section.path[:end], wrapped)
            for step in section.path[end:]:
                if isinstance(shown, dict):
                    shown = shown[step]
                elif isinstance(shown, list):
                    shown = shown[0]
            for key, value in plain.items():
                _overwrite(document, key, value, shown[key] if isinstance(shown, dict) else MASK)
        found += text[at : section.start] + tomlkit.dumps(document)
        at = section.end
    return found + text[at:]


def _overwrite(node: Any, key: Any, plain: Any, shown: Any) -> None:
    """Replace only what is different, so that everything else keeps its spacing."""
    if shown == plain:
        return
    if isinstance(plain, dict) and isinstance(shown, dict) and plain.keys() == shown.keys():
        for each in plain:
            _overwrite(node[key], each, plain[each], shown[each])
    elif isinstance(plain, list) and isinstance(shown, list) and len(plain) == len(shown):
        for index, each in enumerate(plain):
            _overwrite(node[key], index, each, shown[index])
    else:
        node[key] = shown


def _without_empty(value: Any) -> Any:
    """Return the data without empty tables, which set nothing."""
    if not isinstance(value, dict):
        return value
    found = {key: _without_empty(each) for key, each in value.items()}
    return {key: each for key, each in found.items() if each != {}}


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))
