"""Grafana's dashboards ask for what a node has: every name of every query stands in its ``/metrics``."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import ApiClient, managed_node

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "packaging" / "grafana").glob("*.json"))
# What stands there only once it has happened.
LATER = {"taipan_refusals_total", "taipan_disconnects_total"}


def queries(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


@pytest.mark.asyncio
async def test_every_name_is_there() -> None:
    async with managed_node({"public_metrics": True}, durability={"level": "disk"}) as node:
        client = ApiClient(node.management.url, "", app=None)
        text = (await client.get("/metrics")).text
        await client.close()
    there = set(re.findall(r"(?m)^(\w+)[{ ]", text)) | LATER
    asked = set()
    for file in DASHBOARDS:
        for query in queries(json.loads(file.read_text("utf-8"))):
            asked |= set(re.findall(r"\b(?:emqx|taipan)_\w+", query))
    assert len(asked) > 30
    assert asked <= there


def test_panels_do_not_lie_over_each_other() -> None:
    assert len(DASHBOARDS) == 2
    for file in DASHBOARDS:
        panels = json.loads(file.read_text("utf-8"))["panels"]
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken and place["x"] + place["w"] <= 24, (file.name, panel["title"])
            taken |= cells
        assert len({panel["id"] for panel in panels}) == len(panels)
