"""The requests on the pages of docs/api are sent as printed, and answered with the members that the pages show."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.mqtt.constants import SESSION_EXPIRY_INTERVAL
from tests.support.api import managed_node

from .test_monitor import pass_seconds

PAGES = sorted((Path(__file__).parents[2] / "docs" / "api").glob("*.md"))
EXAMPLE = re.compile(
    r"^```\ncurl -u \$TAIPAN (?:-H '[^']*' )?"
    r"(?:-X (?P<method>\w+) )?\"?\$API(?P<path>/[^\s\"]+)\"?(?: -d '(?P<body>.*?)')?\n```\n\n"
    r"```json\n(?P<answer>.*?)\n```$",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = {page.stem: list(EXAMPLE.finditer(page.read_text("utf-8"))) for page in PAGES}


def assert_has(actual: Any, shown: Any) -> None:
    """Every member that is shown is there, with a value of its type; of a list the first that fits."""
    if isinstance(shown, dict):
        assert isinstance(actual, dict) and set(shown) <= set(actual)
        for key, value in shown.items():
            assert_has(actual[key], value)
    elif isinstance(shown, list):
        assert isinstance(actual, list) and len(actual) >= len(shown)
        for one, other in zip(actual, shown, strict=False):
            assert_has(one, other)
    elif isinstance(shown, float):
        assert type(actual) in (int, float)  # a rate of 2.0 is written as 2
    else:
        assert type(actual) is type(shown) or (type(shown) is int and type(actual) is float)


def test_nearly_every_page_begins_with_an_example() -> None:
    without = {page for page, examples in EXAMPLES.items() if not examples}
    assert without == {"endpoints", "rules", "specification"}


@pytest.mark.asyncio
@pytest.mark.parametrize("page", [page for page, examples in EXAMPLES.items() if examples])
async def test_the_examples(page: str) -> None:
    async with managed_node(node={"name": "taipan@127.0.0.1"}) as node:
        porch = await node.client("porch", properties={SESSION_EXPIRY_INTERVAL: 3600})
        await porch.subscribe("garden/#", qos=1)
        if page == "monitor":
            await porch.publish("nobody/reads", b"x")
            await pass_seconds(node, 3)
        for each in EXAMPLES[page]:
            body = json.loads(each["body"]) if each["body"] else None
            reply = await node.api.ask(each["method"] or "GET", each["path"], body)
            assert reply.status == 200, reply.text
            assert_has(reply.json, json.loads(each["answer"]))
