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
SHOWN = re.compile(
    r"(?m)>\s*([A-Za-z][A-Za-z]+[^<>{}=;]*)</"
    r"|\b(?:title|label|aria-label|placeholder|alt|action|description|text)(?:=|: )"
    r'"([A-Za-z][^"=]* [^"=]*|[A-Z][a-z][^"=]*)"'
    r"|\b(?:toast|new Error)\(\s*[\"'`]([A-Za-z]{2}[^\"'`]+)"
)
"""Text of an element, an attribute or a property that is shown, and of a message, as a literal."""
EVENT = re.compile(r"_(refused|revoked|lost|dropped|ended|paused|connected|disconnected)$")
HAPPENED = {"client_refused", "client_disconnected"}
"""Events that the code names by a variable."""

NOT_NAMED = {
    "messages.dropped.no_subscribers",  # usual, not a fault
    # Reasons of deliveries are counted under one of three names: these are not used.
    *(f"delivery_{reason}" for reason in ("queue_full", "too_large", "expired", "qos0_msg", "full", "no_local")),
    *(f"delivery.dropped.{reason}" for reason in ("full", "revoked", "memory", "unreadable")),
    # Only SUBSCRIBE is refused for these, and a Will has no Packet Identifier.
    *(f"{what}_{kind}_subscriptions_not_supported" for what in ("publish", "will") for kind in ("shared", "wildcard")),
    "will_packet_identifier_in_use",
}
"""Counters that Health does not show."""


def keys(page: str, *path: str) -> set[str]:
    """Of the object at this place of the texts of a page. It is written with one entry a line, or on one line."""
    text = (TEXTS / f"{page}.ts").read_text("utf-8")
    indent = "  "
    for name in path:
        found = re.search(rf"(?ms)^{indent}{name}: \{{(.*?)^{indent}\}}", text)
        assert found is not None, (page, path)
        text = found[1]
        indent += "  "
    return set(re.findall(rf'(?m)^{indent}"?([\w.<>]+)"?: ', text))


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


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("<p>Nothing yet.</p>", "Nothing yet."),
        ('<Section title="Last failures">', "Last failures"),
        ('toast("Saved");', "Saved"),
        ("<p>{texts.none}</p>", None),
        ("useState<Rule[]>([])", None),
        ('<section class="panel" role="status">', None),
    ],
)
def test_literal_text_is_found(code: str, found: str | None) -> None:
    match = SHOWN.search(code)
    assert (next(filter(None, match.groups())) if match else None) == found


def test_no_text_stands_outside_its_files() -> None:
    sources = [file for file in TEXTS.parent.rglob("*.ts*") if TEXTS not in file.parents]
    assert len(sources) > 50
    found = [(file.name, match[0]) for file in sources for match in SHOWN.finditer(file.read_text("utf-8"))]
    assert found == []


def test_advice_is_about_what_is_counted() -> None:
    advice = keys("overview", "health", "advice")
    assert len(advice) > 5 and advice <= counted()


def test_every_reason_that_health_may_name_has_words() -> None:
    """Only the reasons of data from other nodes share their words: there the name of the reason follows."""
    names = keys("overview", "health", "names")
    assert names == {name for name in counted() if not name.startswith("cluster_")} - NOT_NAMED
    assert names == keys("zh/overview", "health", "names")


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
        computed = {"refused"}  # the sum of all refusals
        assert shown - computed <= set(columns), shown - set(columns)
        assert keys("overview", "about") <= shown
