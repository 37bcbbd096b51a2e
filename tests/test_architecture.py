"""Imports go down only, and the ground floor stands on the standard library (docs/architecture.md).

And what makes a room readable: no file too long for one noun, a signpost at each door, a log instead of prints.
"""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Each package with what it may import besides itself, from the lowest to the highest.
GROUND = {
    "broker.mqtt": set[str](),
    "broker.session": {"broker.mqtt", "broker.config"},
    "broker.routing": {"broker.mqtt", "broker.session"},
}
LOW = {"broker.config", *GROUND}
MAY_IMPORT = {
    **GROUND,
    "broker.config": set[str](),
    "broker.loop": set[str](),
    "broker.observability": {*LOW, "broker.loop"},
    "broker.persistence": {*LOW, "broker.loop"},
    "broker.core": {*LOW, "broker.loop", "broker.observability", "broker.persistence"},
}
BELOW = set(MAY_IMPORT)
MAY_IMPORT |= {f"broker.{name}": set(BELOW) for name in ("access", "extensions", "store")}
MAY_IMPORT["broker.version"] = set()
MAY_IMPORT["broker.compiled"] = set()
MAY_IMPORT["broker"] = {"broker.compiled"}  # whoever imports anything of it: what is compiled is taken first
MAY_IMPORT["broker.channel"] = set(MAY_IMPORT)
MAY_IMPORT["broker.transport"] = set(MAY_IMPORT)
MAY_IMPORT["broker.server"] = set(MAY_IMPORT)
MAY_IMPORT["ruleengine"] = set(MAY_IMPORT)
MAY_IMPORT["management"] = set(MAY_IMPORT)

MOST_LINES = 600

FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for room in ("broker", "ruleengine", "management")
    for path in (ROOT / room).rglob("*.py")
)


def room_of(module: str) -> str:
    """``taipan.broker.mqtt.topics`` -> ``taipan.broker.mqtt``; ``taipan.management.node`` -> ``management``."""
    parts = module.removeprefix("taipan.").split(".")
    return ".".join(parts[:2]) if parts[0] == "broker" else parts[0]


def imports_of(file: str, source: str) -> set[str]:
    """The absolute names of all modules a file imports, wherever in it."""
    package = ["taipan", *file.removesuffix(".py").removesuffix("/__init__").split("/")]
    if not file.endswith("__init__.py"):
        package.pop()
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from . import topics` and `from broker import mqtt` name modules after the import.
            found |= (
                {f"{module}.{alias.name}" for alias in node.names}
                if module in ("taipan.broker", ".".join(base))
                else {module}
            )
    return found


def test_imports_are_read_as_python_reads_them() -> None:
    source = "import json\nfrom ..mqtt.topics import x\nfrom . import queue\nfrom taipan.broker import config\n"
    source += "def late():\n    from .. import core\n"
    assert imports_of("broker/session/session.py", source) == {
        "json",
        "taipan.broker.mqtt.topics",
        "taipan.broker.session.queue",
        "taipan.broker.config",
        "taipan.broker.core",
    }


@pytest.mark.parametrize("file", FILES)
def test_imports_go_down_only(file: str) -> None:
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    room = room_of(module)
    imported = imports_of(file, (ROOT / file).read_text(encoding="utf-8"))
    ours = {
        room_of(each)
        for each in imported
        if each.split(".")[0] in ("taipan", "broker", "management", "ruleengine", "tests")
    }
    assert ours - {room} - MAY_IMPORT.get(room, set()) == set()


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file.replace("/", ".")) in GROUND])
def test_the_ground_floor_knows_no_loop_no_log_no_clock(file: str) -> None:
    tops = {each.split(".")[0] for each in imports_of(file, (ROOT / file).read_text(encoding="utf-8"))} - {"taipan"}
    assert tops <= sys.stdlib_module_names
    assert tops.isdisjoint({"asyncio", "logging", "time", "datetime", "threading", "socket", "selectors"})


# The rooms of management, from the lowest: each may import those before it.
DOORS = ("operations", "http", "api", "ctl")


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith("management/") and file.count("/") > 1])
def test_the_rooms_of_management_import_downward_too(file: str) -> None:
    room = file.split("/")[1]
    above = set(DOORS[DOORS.index(room) + 1 :]) | ({"api"} if room == "ctl" else set())
    imported = imports_of(file, (ROOT / file).read_text("utf-8"))
    rooms = {each.split(".")[2] for each in imported if each.startswith("taipan.management.")}
    assert rooms.isdisjoint(above | {"node", "management", "config"})


def test_every_room_is_looked_at() -> None:
    assert {room_of(file.removesuffix(".py").replace("/", ".")) for file in FILES} - {"broker.__init__"} >= set(GROUND)
    assert len(FILES) > 40


@pytest.mark.parametrize("file", FILES)
def test_no_file_is_too_long(file: str) -> None:
    assert len((ROOT / file).read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("file", [file for file in FILES if file.endswith("__init__.py")])
def test_every_package_says_what_lives_in_it(file: str) -> None:
    """A signpost is a docstring of some sentences and nothing else: importing a package costs nothing."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    docstring = ast.get_docstring(tree)
    assert docstring is not None and docstring.count(".") >= 2
    # The first door decides which modules are behind all others.
    assert len(tree.body) == 1 or (file == "broker/__init__.py" and len(tree.body) == 2)


@pytest.mark.parametrize("file", [file for file in FILES if not file.endswith("__init__.py")])
def test_every_module_has_a_docstring(file: str) -> None:
    assert ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8")))


def test_every_directory_of_code_is_a_package() -> None:
    assert {Path(file).parent / "__init__.py" for file in FILES} <= {Path(file) for file in FILES}


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith("broker/")])
def test_the_broker_logs_and_never_prints(file: str) -> None:
    called = {
        node.func.id
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert called.isdisjoint({"print", "breakpoint", "input"})
