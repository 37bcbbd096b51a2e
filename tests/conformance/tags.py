"""Finds the tags ``[MQTT-x.y.z-n]`` and ``[3.1.1 MQTT-x.y.z-n]`` in Python files, and the name each stands under.

A tag may hold several statements: a range ``[MQTT-3.3.4-2..4]`` and a list ``[MQTT-3.8.4-1, -5, MQTT-3.9.3-1]``.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

V5 = "5.0"
V311 = "3.1.1"

_BRACKET = re.compile(r"\[(3\.1\.1 )?(MQTT-\d[^\]\n]*)(\]?)")
_PART = re.compile(r"(?:MQTT-(\d+(?:\.\d+)+))?-(\d+)(?:\.\.(\d+))?")


class Tag(NamedTuple):
    """One statement cited at one place; ``name`` is the innermost class or function, "" for the module itself."""

    version: str
    statement: str
    file: str
    name: str
    line: int


class BadTag(ValueError):
    """A bracket that begins like a tag and is none."""


def parse_tag(text: str) -> list[str]:
    """The statements of the inside of a bracket, ranges and lists written out."""
    statements: list[str] = []
    section = ""
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise BadTag(f"not a tag: [{text}]")
        section = match[1] or section
        first, last = int(match[2]), int(match[3] or match[2])
        if not section or last < first:
            raise BadTag(f"not a tag: [{text}]")
        statements += [f"MQTT-{section}-{number}" for number in range(first, last + 1)]
    return statements


def tags_in(file: str, source: str) -> Iterator[Tag]:
    """Every tag of one file in the order of its lines; ``BadTag`` names file and line."""
    names = _names(source)
    for number, line in enumerate(source.splitlines(), 1):
        for match in _BRACKET.finditer(line):
            try:
                if not match[3]:
                    raise BadTag(f"not closed in its line: {match[0]}")
                statements = parse_tag(match[2])
            except BadTag as error:
                raise BadTag(f"{file}:{number}: {error}") from None
            version = V311 if match[1] else V5
            for statement in statements:
                yield Tag(version, statement, file, names.get(number, ""), number)


def tags_under(root: Path, directories: list[str], without: str = "") -> list[Tag]:
    """Every tag of the Python files under ``root/directory``, by path; ``without`` is the head of paths left out."""
    found: list[Tag] = []
    for directory in directories:
        for path in sorted((root / directory).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            if "node_modules" not in file and not (without and file.startswith(without)):
                found += tags_in(file, path.read_text(encoding="utf-8"))
    return found


def _names(source: str) -> dict[int, str]:
    """Line -> dotted name of the innermost class, function or module-level assignment; comments above count with it."""
    lines = source.splitlines()
    names: dict[int, str] = {}

    def enter(body: list[ast.stmt], outer: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{outer}.{node.name}" if outer else node.name
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            elif not outer and isinstance(node, ast.Assign | ast.AnnAssign) and _target(node):
                name, first = _target(node), node.lineno
            else:
                continue
            while first > 1 and lines[first - 2].lstrip().startswith("#"):
                first -= 1
            for line in range(first, (node.end_lineno or first) + 1):
                names[line] = name
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                enter(node.body, name)

    enter(ast.parse(source).body, "")
    return names


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""
