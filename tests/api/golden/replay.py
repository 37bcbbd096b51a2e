"""Replay: sends what was once sent to EMQX, in the same order and with the same clients, and tells what differs."""

from typing import Any, Final

from tests.support.api import ApiClient, Reply, managed_node

from .case_runner import ADMIN, CaseRunner
from .compare import compare
from .recordings import cases
from .rule_case_runner import RuleCaseRunner

NODE: Final = "emqx@127.0.0.1"
# The recorded brokers had their defaults; this one of ours is another.
EMQX_ZONE: Final = {"max_awaiting_rel": 100}
LISTENERS: Final = [
    {"type": "tcp", "name": "default"},
    {"type": "ws", "name": "default"},
]
RULE_ENGINE: Final = ("rules", "actions", "resource_types", "resources")

Differences = tuple[str, ...]
Answer = tuple[Reply | None, tuple[Any, Any], list[str]]
"""Reply, both bodies as they are to be compared, and what differs beside them."""


async def replay(version: str, group: str) -> dict[int, Differences]:
    """What differs, by the case's number. A status may be that of either ``error_status``."""
    http = await _answers(version, group, "http")
    emqx = await _answers(version, group, "emqx")
    differences: dict[int, Differences] = {}
    for case in cases(version, group):
        seq = case["seq"]
        reply, sides, found = http[seq]
        if reply is not None:
            recorded = case["response"]
            other = emqx[seq][0]
            if recorded["status"] not in (reply.status, other and other.status):
                found.append(f"status {recorded['status']} -> {reply.status}")
            if "body" in recorded:
                paged = "_page=" in case["request"]["path"] or "_limit=" in case["request"]["path"]
                found += compare(*sides, paged)
            elif recorded["status"] == 200 and recorded["body_text"].replace(NODE, "") != reply.text.replace(NODE, ""):
                found.append("text")
        differences[seq] = tuple(dict.fromkeys(found))
    return differences


async def _answers(version: str, group: str, error_status: str) -> dict[int, Answer]:
    """By the case's number."""
    app_id, secret = ADMIN
    table = {"error_status": error_status, "apps": [{"id": app_id, "secret": secret}]}
    answers: dict[int, Answer] = {}
    async with managed_node(table, zone=EMQX_ZONE, listeners=LISTENERS, node={"name": NODE}) as node:
        api = ApiClient(node.management.url, prefix="", app=None)
        runner = RuleCaseRunner(node, version, group) if group in RULE_ENGINE else CaseRunner(node, version, group)
        try:
            await runner.set_up()
            for case in cases(version, group):
                reply, effects = await runner.play(api, case)
                recorded = case.get("response", {}).get("body")
                sides = runner.sides(recorded, None if reply is None else reply.json)
                answers[case["seq"]] = reply, sides, effects
        finally:
            await runner.close()
            await api.close()
    return answers
