"""What is checked, and the English of each file: prose of Markdown, strings of the dashboard, docstrings of Python."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

_GENERATED = {"docs/conformance.md", "docs/api/specification.md", "docs/api/endpoints.md"}
_EXAMPLES = {"docs/style.md"}
"""Has wrong sentences on purpose."""
_HISTORY = "docs/decisions/"


def files(root: Path = ROOT) -> list[Path]:
    """The files that are checked, in order; generated pages and decisions are not among them."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "dashboard" / "src" / "texts").rglob("*.ts")]
    for package in ("broker", "management", "ruleengine", "taipan"):
        found += [path for path in (root / package).rglob("*.py") if "static" not in path.parts]
    names = {path.relative_to(root).as_posix(): path for path in found}
    return [
        names[name] for name in sorted(names) if name not in _GENERATED | _EXAMPLES and not name.startswith(_HISTORY)
    ]


def english(path: Path) -> str:
    """Return the English text of one file, without code."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return _of_markdown(text)
    if path.suffix == ".ts":
        return "\n".join(_of_typescript(text))
    return "\n".join(_docstrings(ast.parse(text)))


_COMMENTS = re.compile(r"(?s)/\*.*?\*/|(?m:^\s*//.*$)")
_INSERTED = re.compile(r"\$\{(?:[^{}`]|`[^`]*`)*\}")
"""What a template has in place of a value; the value may be a template itself."""
_STRINGS = re.compile(r'"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'|`((?:[^`\\]|\\.)*)`')


def _of_typescript(text: str) -> Iterator[str]:
    """The strings and templates of the texts of a page; not the name of a file, or of the texts themselves."""
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


def _joined(text: str) -> str:
    """Each paragraph on one line, so that a pattern finds words on both sides of a line break."""
    return re.sub(r"(?<!\n)\n(?![\n|#\-*\d])", " ", text)
