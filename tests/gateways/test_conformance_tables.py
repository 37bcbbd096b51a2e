"""The conformance tables of the gateways: each statement names a test, and each test that is named exists."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGES = {
    "mqtt-sn.md": "test_mqttsn.py",
    "coap.md": "test_coap_exchange.py",
    "lwm2m.md": "test_lwm2m.py",
}
"""Page -> the file of a test without one."""


@pytest.mark.parametrize("page", PAGES)
def test_each_statement_has_a_test(page: str) -> None:
    text = (HERE.parents[1] / "docs" / "gateways" / page).read_text()
    rows = [line for line in text.partition("## Conformance")[2].splitlines() if line.startswith("|")][2:]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`([\w.:]+)`", row.rsplit("|", 2)[1])
        assert named, row
        for each in named:
            file, _, function = each.rpartition(":")
            if each.endswith(".py"):
                file, function = each, ""
            found = (HERE / (file or PAGES[page])).read_text()
            assert re.search(rf"def {function}\b", found), each
