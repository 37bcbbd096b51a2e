"""Where there is no value a line says ``-``, and neither Python's word nor Erlang's."""

import re

import pytest

from taipan.management.ctl.index import COMMANDS
from tests.support.api import managed_node
from tests.support.ctl import ctl, done

pytestmark = pytest.mark.asyncio

LISTS = sorted(
    " ".join(command.words)
    for command in COMMANDS
    if not re.search(r"<|add|start|clean|set|\btop\b", re.sub(r"\[[^]]*\]", "", command.usage))
)
"""Commands that show something and need no argument."""


async def test_no_line_has_a_word_of_a_programming_language_for_nothing() -> None:
    async with managed_node() as node:
        await node.client("nobody", 5)
        await node.leave_session("away", "t/#")
        await node.api.post("/banned", {"who": "bad", "as": "clientid"})
        await node.api.post("/apps", {"app_id": "a", "name": "n"})
        await node.api.post("/trace", {"name": "t", "type": "clientid", "clientid": "nobody"})
        node.server.alarms.activate("an_alarm", "it is over soon", {})
        await node.api.post(
            "/rules", {"rawsql": 'SELECT * FROM "t"', "actions": [{"name": "do_nothing", "params": {}}]}
        )
        lines: dict[str, str] = {}
        for words in (*LISTS, "clients show nobody", "clients show away", "explain nobody", "mgmt lookup a"):
            outcome = await ctl(node, *words.split())
            lines[words] = outcome.out
        node.server.alarms.deactivate("an_alarm")
        lines["alarms over"] = (await ctl(node, "alarms", "list")).out
        wrong = {
            words: line
            for words, text in lines.items()
            for line in text.splitlines()
            if re.search(r"\b(None|undefined|True|False)\b", line)
        }
        assert wrong == {}
        assert sum(bool(text) for text in lines.values()) > 15
        assert any(", username=-, " in line for line in await done(node, "clients", "list"))
