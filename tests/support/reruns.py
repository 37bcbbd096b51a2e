"""Tests that failed and passed when they ran once more: the end of the report says why each had failed.

The plugin counts them and drops the reason, without which nobody can mend the test.
"""

import pytest


def explain_reruns(terminal: pytest.TerminalReporter) -> None:
    failed = terminal.stats.get("rerun", ())
    if failed:
        terminal.section("tests that ran once more")
    for report in failed:
        terminal.write_sep("_", f"{report.nodeid} ({report.when})")
        report.toterminal(terminal._tw)
