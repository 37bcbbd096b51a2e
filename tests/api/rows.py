"""Two pages: all endpoints, and the rows of the specification's tables with the tests that cover them (``rows.toml``).

``python -m tests.api.rows`` writes docs/api/endpoints.md and docs/api/specification.md; ``make docs-tables`` calls it.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from taipan.management.api import monitoring
from taipan.management.api.index import all_routes
from taipan.management.http.routes import Endpoint

TESTS: Final = Path(__file__).parents[1]
FILE: Final = Path(__file__).parent / "rows.toml"
PAGES: Final = TESTS.parent / "docs" / "api"
ENDPOINTS: Final = PAGES / "endpoints.md"
SPECIFICATION: Final = PAGES / "specification.md"

MORE: Final = {
    "Authentication users": "auth_user",
    "Users of EMQX 4.4": "auth_user",
    "ACL rules": "broker_acl",
    "ACL rules of EMQX 4.4": "broker_acl",
    "Nodes": "nodes",
    "Clients": "clients",
    "Subscriptions": "subscriptions",
    "Routes": "subscriptions",
    "Publish, subscribe, unsubscribe": "pubsub",
    "Listeners": "listeners",
    "LwM2M devices": "lwm2m",
    "Metrics and stats": "metrics",
    "Rules": "rules",
    "Rule events": "rules",
    "Rule actions": "rules",
    "Resource types": "rules",
    "Resources": "rules",
    "Schemas": "rules",
    "Data export and import": "data",
    "Retained messages": "retained",
    "Delayed messages": "delayed",
    "Alarms": "alarms",
    "Alarm targets": "alarm_targets",
    "Topic metrics": "topic_metrics",
    "Explain": "explain",
    "Top lists": "top",
    "Audit": "audit",
    "Log": "log_view",
    "Traces": "trace",
    "Slow subscriptions": "trace",
    "Applications": "apps",
    "Banned": "banned",
    "Access": "access",
    "Topic tree": "topic_tree",
    "Annotations": "annotations",
    "Configuration": "configuration",
}
"""The page in docs/api that says more about the endpoints with this tag."""


class Row(NamedTuple):
    """``test``: an id below tests; of a parametrised one the first words of the parameters do."""

    section: str
    name: str
    test: str


def rows() -> list[Row]:
    sections = tomllib.loads(FILE.read_text("utf-8"))["sections"]
    return [Row(each["title"], name, test) for each in sections for name, test in each["rows"].items()]


def specification() -> str:
    """The page of the specification's rows."""
    all_rows = rows()
    lines = [
        "# Rows of the specification",
        "",
        f"Every row of the specification's tables ({len(all_rows)}) and the test that covers it, below `tests/`.",
        "Written by `make docs-tables` from `tests/api/rows.toml`.",
    ]
    section = ""
    for row in all_rows:
        if row.section != section:
            section = row.section
            lines += ["", f"## {section}", "", "| Row | Test |", "|---|---|"]
        lines.append(f"| `{row.name}` | `{row.test}` |")
    return "\n".join(lines) + "\n"


def endpoints() -> str:
    """The page of all endpoints."""
    lines = [
        "# Endpoints",
        "",
        "Every endpoint of the HTTP API. Paths are below `/api/v4` and `/api`; those marked (root) stand beside them.",
        "What requests and answers have in common: [api.md](../api.md). Written by `make docs-tables` from the routes.",
    ]
    tag = ""
    for endpoint in sorted(all_routes() + monitoring.root_routes.all, key=_place(all_routes())):
        if endpoint.tag != tag:
            tag = endpoint.tag
            lines += ["", f"## {tag}", ""]
            if tag in MORE:
                lines += [f"Details: [{MORE[tag]}.md]({MORE[tag]}.md).", ""]
            lines += ["| Endpoint | What it does |", "|---|---|"]
        root = " (root)" if endpoint in monitoring.root_routes.all else ""
        lines.append(f"| `{endpoint.method} {endpoint.path}`{root} | {endpoint.descr} |")
    return "\n".join(lines) + "\n"


def _place(routes: list[Endpoint]) -> Callable[[Endpoint], int]:
    """Resources in the order of the index, those of the root with theirs."""
    tags = list(dict.fromkeys(endpoint.tag for endpoint in routes))
    return lambda endpoint: tags.index(endpoint.tag)


if __name__ == "__main__":
    ENDPOINTS.write_text(endpoints(), "utf-8")
    SPECIFICATION.write_text(specification(), "utf-8")
