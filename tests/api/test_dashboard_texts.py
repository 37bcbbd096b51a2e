"""What the dashboard says of the node's own names is kept under those names: a key that is none never appears."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from taipan.management.history.figures import DROPS
from taipan.management.operations.reasons import ReasonsQuery, explained_reasons
from tests.support.api import managed_node

ROOT = Path(__file__).parents[2]
TEXTS = ROOT / "dashboard" / "src" / "texts"
EVENT = re.compile(r"_(refused|revoked|dropped|ended|paused|connected|disconnected)$")
HAPPENED = {"client_refused", "client_disconnected"}
"""Events that the code names by a variable."""


def keys(page: str, *path: str) -> set[str]:
    """Of the object at this place of the texts of a page. It is written with one entry a line, or on one line."""
    text = (TEXTS / f"{page}.ts").read_text("utf-8")
    indent = "  "
    for name in path:
        found = re.search(rf"(?ms)^{indent}{name}: \{{(.*?)^{indent}\}}", text)
        assert found is not None, (page, path)
        text = found[1]
        indent += "  "
    return set(re.findall(rf'(?m)^{indent}"?([\w.]+)"?: ', text))


def counted() -> set[str]:
    return {name for each in explained_reasons(ReasonsQuery()) for name in each.counters} | set(DROPS)


def remembered() -> Iterator[str]:
    """Events that a client's story may have."""
    yield from HAPPENED
    for file in (ROOT / "broker").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and re.search(
                r"(throttled_log\.warn|\.events\.add|\bnote_refusal)$", ast.unparse(node.func)
            ):
                for each in node.args:
                    if isinstance(each, ast.Constant) and EVENT.search(str(each.value)):
                        yield str(each.value)


def test_advice_is_about_what_is_counted() -> None:
    advice = keys("overview", "health", "advice")
    assert len(advice) > 5 and advice <= counted()


def test_every_event_of_a_story_has_its_words() -> None:
    events = set(remembered())
    assert len(events) > 7
    assert keys("clients", "story", "events") == events | {"client_connected", "delivery_dropped"}


@pytest.mark.asyncio
async def test_figures_and_limits_are_those_of_the_node() -> None:
    async with managed_node(zone={"message_rate": [100, 1.0], "byte_rate": [100_000, 1.0]}) as node:
        await node.client("c")
        limits = {each["setting"] for each in (await node.api.get("/clients/c/explain")).data["limits"]}
        assert keys("clients", "limits", "advice") == limits
        columns = (await node.api.get("/monitor")).data["columns"]
        shown = keys("overview", "columns")
        assert shown <= set(columns), shown - set(columns)
        assert keys("overview", "about") <= shown
