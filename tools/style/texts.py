"""The files that are checked, and their English texts with the patterns that apply to them: prose of Markdown, strings
of the dashboard, docstrings and messages of Python."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.style.patterns import DASHBOARD, MESSAGES, PATTERNS

Patterns = dict[str, re.Pattern[str]]

ROOT = Path(__file__).parents[2]

_GENERATED = {"docs/conformance.md", "docs/api/specification.md", "docs/api/endpoints.md"}
_EXAMPLES = {"docs/style.md", "tools/style/patterns.py"}
"""Files with wrong sentences on purpose."""
_HISTORY = "docs/decisions/"


def files(root: Path = ROOT) -> list[Path]:
    """The files that are checked, in order; generated pages and decisions are not among them."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "dashboard" / "src" / "texts").rglob("*.ts")]
    for package in ("broker", "management", "ruleengine", "taipan", "tools"):
        found += [path for path in (root / package).rglob("*.py") if not {"static", "node_modules"} & set(path.parts)]
    names = {path.relative_to(root).as_posix(): path for path in found}
    return [
        names[name] for name in sorted(names) if name not in _GENERATED | _EXAMPLES and not name.startswith(_HISTORY)
    ]


def english(path: Path) -> list[tuple[str, Patterns]]:
    """Return the English texts of one file, without code, each with the patterns that it is searched for."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return [(_of_markdown(text), PATTERNS)]
    if path.suffix == ".ts":
        return [("\n".join(_of_typescript(text)), PATTERNS | DASHBOARD)]
    tree = ast.parse(text)
    return [("\n".join(_docstrings(tree)), PATTERNS), ("\n".join(_messages(tree)), PATTERNS | MESSAGES)]


_COMMENTS = re.compile(r"(?s)/\*.*?\*/|(?m:^\s*//.*$)")
_INSERTED = re.compile(r"\$\{(?:[^{}`]|`[^`]*`)*\}")
"""A placeholder in a template; the value may be a template itself."""
_STRINGS = re.compile(r'"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'|`((?:[^`\\]|\\.)*)`')


def _of_typescript(text: str) -> Iterator[str]:
    """Yield the strings and templates of a page's texts, except file names and the names of text groups."""
    text = re.sub(r"(?m)^import .*$|\binLanguage\(\"\w+\"", "", _COMMENTS.sub("", text))
    for match in _STRINGS.finditer(_INSERTED.sub("X", text)):
        yield next(filter(None, match.groups()), "")


def _of_markdown(text: str) -> str:
    text = re.sub(r"(?ms)^```.*?^```$", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return _joined(re.sub(r"`[^`]*`", "X", text))


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = ast.get_docstring(node)
            if found:
                yield _joined(re.sub(r"``[^`]*``|`[^`]*`", "X", found))


_WORD = re.compile(r"(?<!\S)[A-Za-z][a-z']*(?=[\s.,;:]|$)")


def _messages(node: ast.AST) -> Iterator[str]:
    """Yield the strings that are sentences: three words or more, no docstring. A value that a message contains is X."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Constant | ast.JoinedStr):
        text = _text(node)
        if len(_WORD.findall(text)) >= 3:
            yield " ".join(re.sub(r"`[^`]*`", "X", text).split("\n"))
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from _messages(child)


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) if isinstance(each, ast.Constant) else "X" for each in node.values)
    return node.value if isinstance(node.value, str) else ""


def _joined(text: str) -> str:
    """Each paragraph on one line, so that a pattern finds words on both sides of a line break."""
    return re.sub(r"(?<!\n)\n(?![\n|#\-*\d])", " ", text)
