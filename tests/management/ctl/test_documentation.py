"""docs/ctl.md has every command there is, and no other."""

import re

from taipan.management.ctl.index import COMMANDS
from tests.support.ctl import ROOT

PAGE = (ROOT / "docs" / "ctl.md").read_text(encoding="utf-8")


def test_the_page_lists_the_commands() -> None:
    tables = PAGE.partition("## A node elsewhere")[2]
    listed = re.findall(r"^\| `([a-z][^`]*)` \|", tables, re.MULTILINE)
    assert sorted(listed) == sorted(command.usage for command in COMMANDS)
