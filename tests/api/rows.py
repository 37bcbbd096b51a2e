"""The rows of the specification's tables and the tests that cover them, from ``rows.toml``, and all endpoints.

``python -m tests.api.rows`` writes both into docs/api.md, sections "Endpoints" and "Specification rows".
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from management.api import monitoring
from management.api.index import all_routes
from management.http.routes import Route

TESTS: Final = Path(__file__).parents[1]
FILE: Final = Path(__file__).parent / "rows.toml"
PAGE: Final = TESTS.parent / "docs" / "api.md"
ENDPOINTS: Final = "## Endpoints\n"
HEADING: Final = "## Specification rows\n"

MORE: Final = {
    "Authentication users": "auth_user",
    "Users of EMQX 4.4": "auth_user",
    "ACL rules": "broker_acl",
    "ACL rules of EMQX 4.4": "broker_acl",
    "Clients": "clients",
    "Subscriptions": "subscriptions",
    "Routes": "subscriptions",
    "Publish, subscribe, unsubscribe": "pubsub",
    "Listeners": "listeners",
    "Metrics and stats": "metrics",
    "Rules": "rules",
    "Rule events": "rules",
    "Rule actions": "rules",
    "Resource types": "rules",
    "Resources": "rules",
    "Data export and import": "data",
    "Retained messages": "retained",
    "Alarms": "alarms",
    "Topic metrics": "topic_metrics",
    "Explain": "explain",
    "Traces": "trace",
    "Slow subscriptions": "trace",
    "Applications": "apps",
    "Banned": "banned",
}
"""Whose page in docs/api tells more."""


class Row(NamedTuple):
    """``test``: an id below tests; of a parametrised one the first words of the parameters do."""

    section: str
    name: str
    test: str


def rows() -> list[Row]:
    sections = tomllib.loads(FILE.read_text("utf-8"))["sections"]
    return [Row(each["title"], name, test) for each in sections for name, test in each["rows"].items()]


def table() -> str:
    """The section of docs/api.md, heading and all."""
    told = rows()
    lines = [
        HEADING,
        f"Every row of the specification's tables ({len(told)}) and the test that covers it, below `tests/`;",
        "written by `python -m tests.api.rows` from `tests/api/rows.toml`.",
    ]
    section = ""
    for row in told:
        if row.section != section:
            section = row.section
            lines += ["", f"### {section}", "", "| Row | Test |", "|---|---|"]
        lines.append(f"| `{row.name}` | `{row.test}` |")
    return "\n".join(lines) + "\n"


def endpoints() -> str:
    """The section of docs/api.md, heading and all."""
    lines = [ENDPOINTS, "Below `/api/v4` and `/api`; those marked (root) stand beside them."]
    tag = ""
    for route in sorted(all_routes() + monitoring.root_routes.all, key=_place(all_routes())):
        if route.tag != tag:
            tag = route.tag
            lines += ["", f"### {tag}", ""]
            if tag in MORE:
                lines += [f"More: [{MORE[tag]}.md](api/{MORE[tag]}.md).", ""]
            lines += ["| | |", "|---|---|"]
        root = " (root)" if route in monitoring.root_routes.all else ""
        lines.append(f"| `{route.method} {route.path}`{root} | {route.descr} |")
    return "\n".join(lines) + "\n\n"


def _place(routes: list[Route]) -> Callable[[Route], int]:
    """Resources in the order of the index, those of the root with theirs."""
    tags = list(dict.fromkeys(route.tag for route in routes))
    return lambda route: tags.index(route.tag)


def page() -> str:
    """docs/api.md as it has to be: what is written by hand, and the two sections."""
    by_hand, heading, _ = PAGE.read_text("utf-8").partition(ENDPOINTS)
    assert heading, f"{PAGE} has no section {ENDPOINTS!r}"
    return by_hand + endpoints() + table()


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
