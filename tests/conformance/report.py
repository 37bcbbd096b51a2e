"""Writes ``docs/conformance.md`` from ``statements.toml`` and the tags in code and tests; ``make conformance``.

Prints the statements that bind a Server and are open. ``--check`` writes nothing and fails where the page is not up to
date. The page holds no line numbers, so it changes only when a tag appears, goes or moves to another name.
"""

import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.tags import V5, V311, tags_under

ROOT = Path(__file__).resolve().parents[2]

PAGE = Path("docs/conformance.md")
STATEMENTS = Path(__file__).with_name("statements.toml")
CODE = ["broker", "management"]
TESTS = ["tests"]
SELF = "tests/conformance/"
SUPPORT = "tests/support/"  # what tests are written with proves nothing itself


@dataclass
class Statement:
    """A normative statement, and the places that cite it."""

    id: str
    version: str
    binds: str
    says: str
    same: str = ""
    untestable: str = ""
    code: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)

    @property
    def binds_server(self) -> bool:
        return self.binds in ("server", "both")

    @property
    def is_open(self) -> bool:
        return not (self.tests or self.untestable)

    @property
    def order(self) -> tuple[int, ...]:
        section, number = self.id.removeprefix("MQTT-").split("-")
        return (*map(int, section.split(".")), int(number))


Statements = dict[tuple[str, str], Statement]


def load_statements(path: Path = STATEMENTS) -> Statements:
    """(version, id) -> Statement, without places yet."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        (version, id_): Statement(id_, version, **row) for version in (V5, V311) for id_, row in tables[version].items()
    }


def unknown_tags(root: Path, statements: Statements) -> list[str]:
    """``file:line: tag`` of every tag that names no statement of its version."""
    return [
        f"{tag.file}:{tag.line}: [{'3.1.1 ' if tag.version == V311 else ''}{tag.statement}]"
        for tag in tags_under(root, CODE + TESTS, without=SELF)
        if (tag.version, tag.statement) not in statements
    ]


def collect(root: Path, statements: Statements) -> None:
    """Puts every place that cites a statement into it; a 3.1.1 statement shares those of the 5.0 one it equals."""
    for directories, kind in ((CODE, "code"), (TESTS, "tests")):
        places: dict[tuple[str, str], set[str]] = defaultdict(set)
        for tag in tags_under(root, directories, without=SELF):
            if tag.file.startswith(SUPPORT):
                continue
            places[tag.version, tag.statement].add(f"{tag.file}:{tag.name}" if tag.name else tag.file)
        for statement in statements.values():
            own = places[statement.version, statement.id]
            shared = places[V5, statement.same] if statement.same else set()
            setattr(statement, kind, sorted(own | shared))


def open_statements(statements: Statements) -> list[Statement]:
    """Those that bind a Server and no test proves, 5.0 first."""
    return [each for each in _sorted(statements) if each.binds_server and each.is_open]


def render(statements: Statements) -> str:
    """The whole page."""
    lines = [
        "# MQTT conformance",
        "",
        "`make conformance` writes this page; do not edit it. The page lists every normative statement of MQTT 5.0",
        "and 3.1.1 (numbered as in Appendix B of each standard) in our own words, the code that implements it, and the",
        "tests that prove it. *Open* means that no test cites the statement yet. The page includes statements that",
        "bind only a client, because the Server often reacts to violations. A 3.1.1 statement with",
        "\u201c= MQTT-\u2026\u201d is the same as that 5.0 statement, and shares its code and tests.",
        "",
        "In section 4.7.3, only the length of a Topic Name or Topic Filter limits its levels. Taipan has a further",
        "limit, so that no client can make it process 65,535 levels: `max_topic_levels`, 128 by default. With 0, only",
        "the limit of the standard applies.",
        "",
        "If section 4.7.1 does not allow a Topic Filter, the node answers with its code in SUBACK (0x8F, 3.x: 0x80)",
        "or UNSUBACK (0x8F), and the connection stays open: section 4.13 lets a Server choose between that and",
        "closing it.",
        "",
        "| Version | Statements | Bind a Server | Proven by a test | Cannot be tested | Open |",
        "|---|---|---|---|---|---|",
    ]
    for version in (V5, V311):
        rows = [each for each in _sorted(statements) if each.version == version]
        server = [each for each in rows if each.binds_server]
        proven = sum(bool(each.tests) for each in server)
        untestable = sum(bool(each.untestable) and not each.tests for each in server)
        count = len(server) - proven - untestable
        lines.append(f"| {version} | {len(rows)} | {len(server)} | {proven} | {untestable} | {count} |")
    for version in (V5, V311):
        lines += [
            "",
            f"## MQTT {version}",
            "",
            "| Statement | Meaning | Binds | Code | Tests |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(each) for each in _sorted(statements) if each.version == version]
    return "\n".join(lines) + "\n"


def _row(each: Statement) -> str:
    name = f"{each.id} (= {each.same})" if each.same else each.id
    if each.tests:
        tests = _places(each.tests)
    elif each.untestable:
        tests = f"can't be tested: {each.untestable}"
    else:
        tests = "*open*" if each.binds_server else ""
    says = each.says.replace("|", "\\|")
    return f"| {name} | {says} | {each.binds} | {_places(each.code)} | {tests} |"


def _places(places: list[str], most: int = 4) -> str:
    shown = ", ".join(f"`{place}`" for place in places[:most])
    return f"{shown} and {len(places) - most} more" if len(places) > most else shown


def _sorted(statements: Statements) -> list[Statement]:
    return sorted(statements.values(), key=lambda each: (each.version != V5, each.order))


def main() -> int:
    statements = load_statements()
    for unknown in unknown_tags(ROOT, statements):
        print(f"no such statement: {unknown}", file=sys.stderr)
    collect(ROOT, statements)
    page, path = render(statements), ROOT / PAGE
    if "--check" in sys.argv[1:]:
        if path.exists() and path.read_text(encoding="utf-8") == page:
            return 0
        print(f"{PAGE} is not up to date: make conformance", file=sys.stderr)
        return 1
    path.parent.mkdir(exist_ok=True)
    path.write_text(page, encoding="utf-8")
    still_open = open_statements(statements)
    for each in still_open:
        print(f"open  {'3.1.1 ' if each.version == V311 else ''}{each.id}  {each.says}")
    print(f"{len(still_open)} statements that bind a Server are open; {PAGE} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
