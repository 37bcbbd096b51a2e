"""docs/rule-parameters.md says what is declared, and its examples can be created."""

import re

import pytest

from taipan.ruleengine.types.builtin import ACTION_TYPES, RESOURCE_TYPES
from tests.rules.reference import ACTIONS, PAGE, RESOURCES, example_resource, example_rule, render
from tests.support.api import managed_node


def test_the_page_is_as_declared() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "python -m tests.rules.reference"


def test_the_examples_have_every_parameter() -> None:
    assert {each.name: {param.name for param in each.params} for each in RESOURCE_TYPES} == {
        name: set(config) for name, config in RESOURCES.items()
    }
    assert {each.name: {param.name for param in each.params} - {"$resource"} for each in ACTION_TYPES} == {
        name: set(params) for name, (_, params) in ACTIONS.items()
    }


def test_chinese_texts_have_full_width_punctuation() -> None:
    """A text that a form shows; ``host:port`` and ``${name}`` stay as they are typed."""
    types = (*RESOURCE_TYPES, *ACTION_TYPES)
    texts = [each.zh for kind in types for each in (kind.title, kind.description)]
    texts += [each.zh for kind in types for param in kind.params for each in (param.title, param.description)]
    assert any(HALF_WIDTH.search(each) for each in ("主题,留空", "JSON;留空", "(秒)"))
    assert [each for each in texts if HALF_WIDTH.search(each)] == []


HALF_WIDTH = re.compile("[\u4e00-\u9fff）}] ?[,;:!?(]|[,;:!?)] ?[\u4e00-\u9fff]|[(][\u4e00-\u9fff]")


@pytest.mark.asyncio
async def test_the_examples_are_created_and_shown() -> None:
    async with managed_node() as node:
        for resource in RESOURCE_TYPES:
            reply = await node.api.post("/resources", example_resource(resource.name))
            assert (reply.status, reply.code) == (200, 0), (resource.name, reply.text)
        for action in ACTION_TYPES:
            needed = f"resource:{action.resource_types[0]}" if action.resource_types else None
            reply = await node.api.post("/rules", example_rule(action.name, needed))
            assert (reply.status, reply.code) == (200, 0), (action.name, reply.text)
            (made,) = reply.data["actions"]
            assert made["params"].items() >= ACTIONS[action.name][1].items()
