"""The pages say what is so: links lead somewhere, examples are taken, and what they name is there."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from taipan.management.api import monitoring
from taipan.management.api.index import all_routes
from taipan.management.configuration.config import TABLES, load
from taipan.management.ctl import main
from taipan.management.ctl.index import COMMANDS
from taipan.ruleengine.sql.parser import parse
from tests import publish_path

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Decisions and the changelog say what was so when they were written.
OF_NOW = [page for page in PAGES if "decisions" not in page.parts and page.name != "CHANGELOG.md"]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
MAX_WIDTH = 120
# A table of the tests, each named by its path below tests, and of members of answers.
ROWS = ROOT / "docs" / "api" / "specification.md"
# Code spans with the form of a setting that are something else: members of answers of the HTTP API, a hook.
NOT_SETTINGS = {"data.count", "retained.stored", "webhook.client_connect"}
# What the recipes have their reader make.
TO_BE_MADE = {
    "GET /hooks",
    "access.badges",
    "broker/access/badges/declaration.py",
    "docs/api/hook_points.md",
    "management/api/hook_points.py",
    "management/operations/hook_points.py",
    "ruleengine/actions/count_bytes.py",
    "tests/api/test_hook_points.py",
    "tests/ruleengine/actions/test_count_bytes.py",
}

LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`]+)`")
SETTING = re.compile(rf"(?:{'|'.join(TABLES)})\.[a-z_]+[a-z_.0-9]*")
ENDPOINT = re.compile(r"(GET|POST|PUT|DELETE) (/[^\s?]*)(?:\?\S*)?")
SOURCE = re.compile(r"((?:broker|management|ruleengine|taipan|tests|tools|config|docs)/[\w./-]*)(?:::([\w.]+))?")
DIRECTORIES = ("broker", "management", "ruleengine")


class Line(NamedTuple):
    number: int
    text: str
    fence: str | None
    """The language of the fenced block that it stands in; None outside."""


@cache
def lines(page: Path) -> list[Line]:
    found = []
    fence: str | None = None
    for number, text in enumerate(page.read_text("utf-8").splitlines(), 1):
        if text.lstrip().startswith("```"):
            fence = text.strip().strip("`") if fence is None else None
            continue
        found.append(Line(number, text, fence))
    assert fence is None, f"{page}: a fenced block has no end"
    return found


def prose(page: Path) -> str:
    return "\n".join(line.text for line in lines(page) if line.fence is None)


def blocks(page: Path, language: str) -> Iterator[str]:
    for found in re.finditer(r"(?ms)^```(\w*)\n(.*?)^```$", page.read_text("utf-8")):
        if found[1] == language:
            yield found[2]


def plain(text: str) -> str:
    """What stands between the marks of Markdown."""
    return re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "")


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    names = set()
    for line in lines(page):
        if line.fence is None and line.text.startswith("#"):
            title = plain(line.text.lstrip("#").strip()).lower()
            name = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            count = found[name] = found.get(name, -1) + 1
            names.add(name if count == 0 else f"{name}-{count}")
    return names


def spans(page: Path) -> list[str]:
    found = [" ".join(span.split()) for span in SPAN.findall(prose(page))]
    return [span for span in found if page.parent.name != "recipes" or span not in TO_BE_MADE]


def test_every_page_is_listed_once() -> None:
    """docs/README.md sorts the pages by what they are for."""
    index = ROOT / "docs" / "README.md"
    listed = [(index.parent / link).resolve() for link in LINK.findall(prose(index))]
    assert len(listed) == len(set(listed))
    missing = [page for page in PAGES if page.parent in (index.parent, index.parent / "api") and page not in listed]
    assert missing == [index]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_lines_fit(page: Path) -> None:
    assert not [
        line.number
        for line in lines(page)
        if line.fence is None and len(line.text) > MAX_WIDTH and not line.text.lstrip().startswith("|")
    ]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_configuration_is_taken(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(block, "utf-8")
        load(str(file), environ={})


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_code_can_be_read(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)
    for block in blocks(page, "json"):
        json.loads(block)
    for block in blocks(page, "sql"):
        for statement in block.splitlines():
            parse(statement)
    for body in re.findall(r"(?s) -d '([^$@].*?)'", "".join(blocks(page, ""))):
        json.loads(body)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_settings_exist(page: Path) -> None:
    known = settings()
    unknown = []
    for span in spans(page):
        if (
            page != ROWS
            and "decisions" not in page.parts
            and SETTING.fullmatch(span)
            and span not in NOT_SETTINGS
            and not (page.name == "python.md" and span.startswith("node."))  # an object of its examples
            and not span.endswith((".py", ".md", ".toml"))
        ):
            steps = [step for step in span.split(".") if not step.isdigit()]
            if ".".join(steps[:2]) not in known:
                unknown.append(span)
    assert not unknown


@cache
def settings() -> set[str]:
    return {f"{table}.{key}" for table, kind in TABLES.items() for key in kind.__struct_fields__}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_endpoints_exist(page: Path) -> None:
    unknown = []
    for span in spans(page):
        found = ENDPOINT.fullmatch(span)
        if found and not is_route(found[1], found[2]):
            unknown.append(span)
    assert not unknown


def is_route(method: str, path: str) -> bool:
    segments = tuple(segment for segment in re.sub(r"^/api(/v4)?(?=/|$)", "", path).split("/") if segment)
    return any(
        route.method == method
        and len(route.segments) == len(segments)
        and all(own == asked or own[0] == "{" for own, asked in zip(route.segments, segments, strict=True))
        for route in all_routes() + monitoring.root_routes.all
    )


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_files_and_names_exist(page: Path) -> None:
    """A path in a code span is a file or directory; ``path.py::Class.method`` is defined there."""
    missing = []
    for span in spans(page):
        found = SOURCE.fullmatch(span)
        if not found or page == ROWS or "decisions" in page.parts:  # decisions tell what was so when they were made
            continue
        file = ROOT / found[1]
        if not file.exists() or (found[2] and found[2] not in definitions(file)):
            missing.append(span)
    assert not missing


@cache
def definitions(file: Path) -> set[str]:
    """Classes, functions and assigned names of a module; members with their class before them."""
    return set(_defined(ast.parse(file.read_text("utf-8")).body, ""))


def _defined(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
            case ast.ClassDef(name=name):
                yield prefix + name
                yield from _defined(statement.body, f"{prefix}{name}.")
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name
            case ast.Assign(targets=targets):
                yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))
            case ast.If():
                yield from _defined(statement.body + statement.orelse, prefix)


@pytest.mark.parametrize("page", OF_NOW, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    """``make`` has the targets, Python the modules, and ``taipan-ctl`` the commands."""
    commands = [" ".join(span.split()) for span in SPAN.findall(prose(page))]
    commands += [line.text.strip() for line in lines(page) if line.fence == ""]
    unknown = []
    for command in commands:
        words = command.replace("| ", "").split(" #")[0].split()
        words = [word for word in words if "=" not in word]
        if words[:1] == ["make"] and not set(words[1:2]) <= targets() | {"-C"}:
            unknown.append(command)
        if "-m" in words and words[words.index("-m") - 1].endswith("python"):
            name = words[words.index("-m") + 1].replace(".", "/")
            if name.startswith(("tests", "tools", "taipan")) and not any(
                (ROOT / f"{name}{end}").exists() for end in (".py", "/__main__.py")
            ):
                unknown.append(command)
        if words[:1] in (["taipan-ctl"], [".venv/bin/taipan-ctl"]) and not is_command(words[1:]):
            unknown.append(command)
    assert not unknown


@cache
def targets() -> set[str]:
    return set(re.findall(r"(?m)^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8")))


VALUED = tuple(main.OPTIONS)
"""Options of ``taipan-ctl`` that a value follows."""


def is_command(words: list[str]) -> bool:
    while words and words[0].startswith(("-", "[")):
        words = words[2:] if words[0] in VALUED else words[1:]
    if not words or words[0].isupper():
        return True
    return any(all(a == b for a, b in zip(words, command.words, strict=False)) for command in COMMANDS)


def test_wrong_pages_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n[gone](gone.md) [no such part](#none) `access.no_such_key` `GET /nowhere`\n"
        f"`tests/test_docs.py::nothing` `make nothing` `taipan-ctl nothing`\n"
        f"{'x' * 121}\n\n```toml\n[access]\nno_such_key = 1\n```\n",
        "utf-8",
    )
    for check in (test_links_lead_somewhere, test_lines_fit, test_settings_exist, test_endpoints_exist):
        with pytest.raises(AssertionError):
            check(page)
    with pytest.raises(AssertionError):
        test_files_and_names_exist(page)
    with pytest.raises(AssertionError):
        test_commands_exist(page)
    with pytest.raises(Exception, match="no_such_key"):
        test_configuration_is_taken(page, tmp_path)


def test_toml_that_ships_is_read() -> None:
    for file in (ROOT / "config").rglob("*.toml"):
        tomllib.loads(file.read_text("utf-8"))


def test_log_events() -> None:
    """The tables of events in docs/log.md have every event of level info and above, and no other."""
    files = [*(ROOT / "taipan").glob("*.py"), *[file for top in DIRECTORIES for file in (ROOT / top).rglob("*.py")]]
    source = "".join(file.read_text("utf-8") for file in files)
    page = (ROOT / "docs" / "log.md").read_text("utf-8").partition("## Why a client")[0]
    listed = {event for row in re.findall(r"(?m)^\| (`[^|]+) \|", page) for event in re.findall(r"`(\w+)`", row)}
    assert not [event for event in listed if not re.search(rf"[\"']{event}[ \"']", source)]
    call = r"logger\.(?:info|warning|error)\(\s*f?[\"']([a-z]+(?:_[a-z]+)+)[ \"']"
    assert not set(re.findall(call, source)) - listed


def test_the_drawing_has_every_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    drawing = page.partition("## Packages")[2].partition("## The path of a PUBLISH")[0]
    listed = [ROOT / "ruleengine" / "sinks", ROOT / "broker" / "access"]  # what is in them: by their registries
    folders = [init.parent for top in DIRECTORIES for init in (ROOT / top).rglob("__init__.py")]
    packages = {folder.name for folder in folders if folder.parent not in listed}
    assert packages <= set(re.findall(r"\w+", drawing))


@pytest.mark.interpreted
@pytest.mark.asyncio
async def test_the_path_of_a_publish() -> None:
    """docs/architecture.md has the calls that a PUBLISH makes, and they stay few."""
    calls = await publish_path.record()
    assert len(calls) <= publish_path.MAX_CALLS
    assert len({call.file for call in calls}) <= publish_path.MAX_FILES
    page = publish_path.PAGE.read_text("utf-8")
    assert publish_path.written(page, calls) == page, "make docs-tables writes them"


def test_the_readme_is_short() -> None:
    """A first screen that says what Taipan is; the walk is in docs/tutorial.md."""
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_entries_of_the_changelog_are_short() -> None:
    """One line of at most 25 words for each change that a user sees: docs/style.md."""
    entries = re.findall(r"(?ms)^- (.*?)(?=^- |^#|\Z)", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert entries
    assert [entry for entry in entries if len(entry.split()) > 25] == []
