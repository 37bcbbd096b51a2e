"""The page about a session that moves names functions that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
NAME = re.compile(r"`(_?[A-Z]\w+)\.(\w+)`")


def members() -> dict[str, set[str]]:
    """The functions and fields of each class of the package, and of what starts it."""
    found: dict[str, set[str]] = {}
    cluster = ROOT / "broker" / "cluster"
    for file in (*(cluster / "moving").glob("*.py"), cluster / "nats_cluster.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = found.setdefault(node.name, set())
                names |= {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
                names |= {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
    return found


def test_each_function_on_the_page_exists() -> None:
    page = (ROOT / "docs" / "how-a-session-moves.md").read_text("utf-8")
    named = NAME.findall(page)
    known = members()
    assert len(named) > 30
    assert not [f"{kind}.{name}" for kind, name in named if name not in known.get(kind, ())]
    # Those without a class belong to the class before them.
    everything = set().union(*known.values())
    assert not {name for name in re.findall(r"`(_?[a-z]\w+)`", page) if name.startswith("_")} - everything
