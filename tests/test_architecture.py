"""Imports go down only (docs/architecture.md), and what makes a package readable.

Every import counts, also one inside of a function or for types only. Each test lists all that offends.
"""

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]


class Part(NamedTuple):
    """``holds``: packages, with all below them, and modules, ``*`` for any; ``imports``: parts that they may import."""

    name: str
    holds: str
    imports: str = ""


# Lowest first: a part imports itself and those above it in this table that it names. What is not here is refused.
PARTS = (
    Part("compiled", "broker.compiled"),
    Part("packages", "broker management ruleengine", "compiled"),  # their __init__.py alone
    Part("version", "broker.version"),
    Part("values", "broker.setting_rules broker.value_types"),
    Part("entry-points", "broker.entry_points"),
    Part("logins", "broker.mysql_connection broker.redis_servers"),
    Part(
        "sources",
        "broker.access.declaration broker.access.database_settings broker.access.emqx_plugin "
        "broker.access.placeholders broker.access.registry "
        "broker.access.sql_query broker.access.sql_settings broker.access.*.command broker.access.*.declaration",
        "values",
    ),
    Part("settings", "broker.config broker.listener_kinds", "sources values"),
    Part("mqtt", "broker.mqtt"),
    Part("gateways", "broker.gateway", "entry-points mqtt settings"),
    Part("shipped-gateways", "broker.gateways", "gateways mqtt settings"),
    Part("loop", "broker.loop"),
    Part("log", "broker.persistence.log"),
    Part("session", "broker.session", "mqtt settings"),
    Part("routing", "broker.routing", "mqtt session"),
    Part("observability", "broker.observability", "loop mqtt session settings"),
    Part("persistence", "broker.persistence", "log loop mqtt session"),
    Part("core", "broker.core", "loop mqtt observability persistence routing session settings"),
    Part(
        "access",
        "broker.access",
        "entry-points loop mqtt logins observability persistence session settings sources values version",
    ),
    Part("extensions", "broker.extensions", "core loop mqtt observability persistence session settings"),
    Part("store", "broker.store", "core log loop mqtt persistence session settings"),
    Part(
        "channel",
        "broker.channel",
        "access core extensions loop mqtt observability persistence routing session settings",
    ),
    Part("cluster-wire", "broker.cluster.changes broker.cluster.wire broker.cluster.tasks", "log mqtt observability"),
    Part("cluster-nats", "broker.cluster.nats", "cluster-wire core loop settings"),
    Part(
        "cluster-members",
        "broker.cluster.calls broker.cluster.context broker.cluster.members",
        "channel cluster-nats cluster-wire core loop observability persistence settings",
    ),
    Part(
        "cluster-links",
        "broker.cluster.links",
        "channel cluster-members cluster-nats cluster-wire core log loop mqtt observability persistence routing session"
        " settings",
    ),
    Part(
        "cluster-shared",
        "broker.cluster.shared",
        "cluster-members cluster-nats cluster-wire core log loop mqtt observability persistence session settings store",
    ),
    Part(
        "cluster-moving",
        "broker.cluster.moving",
        "channel cluster-links cluster-members cluster-nats cluster-wire core log loop mqtt observability persistence"
        " routing session settings store",
    ),
    Part(
        "cluster-replicas",
        "broker.cluster.replicas",
        "cluster-members cluster-nats cluster-wire core log observability settings store",
    ),
    Part(
        "cluster",
        "broker.cluster",
        "access channel cluster-links cluster-members cluster-moving cluster-nats cluster-replicas cluster-shared"
        " cluster-wire core"
        " extensions log loop mqtt observability persistence routing session settings store version",
    ),
    Part("transport", "broker.transport", "channel core gateways loop mqtt persistence routing session settings"),
    Part(
        "server",
        "broker.server broker.client_sweep broker.hosted_node broker.node_cluster broker.node_gauges"
        " broker.store_alarms",
        "access channel cluster cluster-members cluster-nats core extensions loop mqtt observability persistence"
        " routing session settings store transport version",
    ),
    Part("records", "ruleengine.records"),
    Part("settings-of-sinks", "ruleengine.sinks.opentsdb.settings", "settings"),
    Part(
        "basis",
        "ruleengine.config ruleengine.events.hops ruleengine.functions.budget ruleengine.functions.undefined"
        " ruleengine.network ruleengine.params ruleengine.rules.metrics",
        "mqtt observability records settings",
    ),
    Part("functions", "ruleengine.functions", "basis mqtt"),
    Part("columns", "ruleengine.events.columns", "basis functions"),
    Part("sql", "ruleengine.sql", "basis columns functions mqtt"),
    Part("template", "ruleengine.actions.template", "basis core functions sql"),
    Part("errors", "ruleengine.error ruleengine.stored.rows", "basis sql"),
    Part("schemas", "ruleengine.schemas", "basis errors functions loop persistence records"),
    Part("events", "ruleengine.event ruleengine.events", "basis columns mqtt records session"),
    Part("mqtt_client", "ruleengine.mqtt_client", "basis mqtt observability"),
    Part("delivery", "ruleengine.delivery", "basis events loop persistence records"),
    Part(
        "resources",
        "ruleengine.network.tls ruleengine.resources",
        "basis core delivery loop mqtt observability persistence records session",
    ),
    Part(
        "actions",
        "ruleengine.actions",
        "basis core delivery events functions mqtt records resources session settings template",
    ),
    Part(
        "sinks",
        "ruleengine.databases ruleengine.sinks",
        "actions basis core delivery events functions mqtt mqtt_client logins observability resources session template "
        "settings-of-sinks",
    ),
    Part(
        "rules",  # the managers of rules and of resources, and the engine that assembles them
        "ruleengine.engine ruleengine.resources.resource_manager ruleengine.rules ruleengine.stored ruleengine.types",
        "actions basis channel columns core delivery entry-points errors events functions loop mqtt observability"
        " persistence records resources routing schemas server session settings sinks sql template",
    ),
    Part("event-lanes", "ruleengine.event_lanes", "server session"),
    Part(
        "exhook",
        "ruleengine.exhook",
        "access basis core delivery event-lanes mqtt observability routing server session",
    ),
    Part(
        "web-hook", "ruleengine.webhook", "basis core event-lanes mqtt observability resources routing server session"
    ),
    Part(
        "configuration",
        "management.configuration",
        "access basis core gateways loop observability settings sources values version",
    ),
    Part(
        "alarm-targets",
        "management.alarm_targets",
        "basis loop mqtt observability resources server version",
    ),
    Part("history", "management.history", "configuration loop observability server"),
    Part(
        "operations",
        "management.operations",
        "access alarm-targets channel configuration core delivery errors extensions gateways history log loop mqtt"
        " observability persistence records routing rules server session settings sources transport",
    ),
    Part(
        "http", "management.http", "access configuration core loop observability operations session settings transport"
    ),
    Part("data_dir", "management.data_dir"),
    Part(
        "ctl",
        "management.ctl",
        "access configuration data_dir extensions http log loop observability operations records version",
    ),
    Part("api", "management.api", "access alarm-targets ctl extensions http loop operations records"),
    Part("dashboard", "management.dashboard", "http operations transport"),
    Part(
        "migrate",
        "management.migrate",
        "access configuration errors gateways log loop mqtt observability operations persistence rules server session"
        " settings sources store transport",
    ),
    Part(
        "node",
        "management.assembly management.certificate_expiry management.commands management.configuration_check"
        " management.hosted_parts"
        " management.early_signals management.log_lines management.management_server management.node"
        " management.secret_line management.start management.systemd_notify management.workers",
        "access api cluster cluster-nats cluster-replicas compiled configuration core ctl dashboard data_dir history"
        " http loop migrate"
        " observability operations sources"
        " exhook rules server session settings transport version web-hook",
    ),
    Part(
        "embedding",  # a node inside a program
        "access_callbacks amqtt amqtt_plugins amqtt_sessions amqtt_settings background capmqtt faults gateway hooks"
        " keywords message node pytest_plugin rule_callbacks subscription testing",
        "access basis configuration core data_dir delivery errors events functions gateways loop mqtt node"
        " observability operations server"
        " session settings actions transport",
    ),
    Part("taipan", "taipan __main__", "configuration embedding node version"),
)
MOST_LINES = 600
PUBLIC_NAMES = {"Broker", "Hooks", "Message", "Subscription"}
"""Classes of the public Python API (docs/python.md) that are called like the part of the node that they stand for."""
INTERACTIVE = {"print", "breakpoint", "input"}
FORBIDDEN = {"asyncio", "logging", "time", "datetime", "threading", "socket", "selectors"}
WITHOUT_LOOP = ("mqtt", "session", "routing")
NATIVE = "mypy_extensions"  # native integers, which mypyc alone reads
"""Parts that know the standard library only, and of that no loop, no log and no clock: time is an argument."""


@functools.cache
def source_files() -> dict[str, str]:
    """The text of each file, by its path as installed: ``taipan/broker/server.py``."""
    paths = [path for top in ("broker", "ruleengine", "management") for path in (ROOT / top).rglob("*.py")]
    files = {f"taipan/{path.relative_to(ROOT).as_posix()}": path for path in paths}
    files |= {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "taipan").glob("*.py")}
    return {name: path.read_text(encoding="utf-8") for name, path in sorted(files.items())}


@functools.cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@pytest.fixture(scope="module", autouse=True)
def _parsed_is_forgotten() -> Iterator[None]:
    """It is more than all tests hold."""
    yield
    parsed.cache_clear()


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(file: str, source: str, modules: set[str]) -> set[str]:
    """The absolute names of all modules a file imports, wherever in it; ``modules`` are those that there are."""
    package = module_of(file).split(".")
    if not file.endswith("__init__.py"):
        package.pop()
    found: set[str] = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            named = {f"{module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else module for name in named}
    return found


def part_of(module: str) -> Part | None:
    """The part that holds it most closely."""
    whole = name = module.removeprefix("taipan.")
    while name:
        for part in PARTS:
            held = any(fnmatchcase(name, each) for each in part.holds.split())
            if held and (name == whole or part.name != "packages"):
                return part
        name = name.rpartition(".")[0]
    return None


def wrong_imports(files: Mapping[str, str]) -> list[str]:
    """Imports that ``PARTS`` does not allow."""
    modules = {module_of(file) for file in files}
    found = []
    for file, source in files.items():
        mine = part_of(module_of(file))
        if mine is None:
            found.append(f"{file} is in no part")
            continue
        allowed = {mine.name, *mine.imports.split()}
        for imported in sorted(imports_of(file, source, modules)):
            top = imported.split(".")[0]
            if top in ("broker", "ruleengine", "management", "tests", "tools"):
                found.append(f"{file} imports {imported}")
            elif top == "taipan":
                part = part_of(imported)
                if part is None or part.name not in allowed:
                    found.append(f"{file} ({mine.name}) imports {imported} ({part and part.name})")
    return found


def cycles_over_packages(files: Mapping[str, str]) -> list[list[str]]:
    """Modules of more than one package of which each imports each, at however many removes."""
    modules = {module_of(file): file for file in files}
    graph = {
        module: {each for each in imports_of(file, files[file], set(modules)) if each in modules}
        for module, file in modules.items()
    }
    left = set[str]()
    while left != (left := set(graph)):  # whoever imports none of the others, or is imported by none, is in no cycle
        imported = set[str]().union(*graph.values())
        graph = {module: graph[module] & left for module in left & imported if graph[module] & left}
    reached = {module: _reached(graph, module) for module in graph}
    cycles = {frozenset(each for each in seen if module in reached[each]) for module, seen in reached.items()}
    return sorted(sorted(cycle) for cycle in cycles if len({_package(modules[each]) for each in cycle}) > 1)


def _reached(graph: Mapping[str, set[str]], module: str) -> set[str]:
    seen, ahead = set[str](), [module]
    while ahead:
        new = graph.get(ahead.pop(), set()) - seen
        seen |= new
        ahead += new
    return seen & set(graph)


def _package(file: str) -> str:
    return file.rpartition("/")[0]


def test_imports_go_down_only() -> None:
    above: set[str] = set()
    for part in PARTS:
        assert set(part.imports.split()) <= above, f"{part.name} names what is not above it in the table"
        above.add(part.name)
    example = {
        "taipan/broker/mqtt/packets.py": "import json\ndef late():\n    from .. import core\n",
        "taipan/broker/core/broker.py": "from ..mqtt import packets\nfrom tests import y\n",
        "taipan/broker/core/__init__.py": "if TYPE_CHECKING:\n    from taipan.management.node import z\n",
        "taipan/novel.py": "",
    }
    assert wrong_imports(example) == [
        "taipan/broker/mqtt/packets.py (mqtt) imports taipan.broker.core (core)",
        "taipan/broker/core/broker.py imports tests",
        "taipan/broker/core/__init__.py (core) imports taipan.management.node (node)",
        "taipan/novel.py is in no part",
    ]
    files = source_files()
    assert len(files) > 200 and {part_of(module_of(file)) for file in files} == set(PARTS)
    found = wrong_imports(files)
    assert not found, "\n".join(found)


def test_no_import_cycle_but_within_one_package() -> None:
    example = {
        "taipan/a/zero.py": "from .one import w\n",
        "taipan/a/one.py": "from .two import x\n",
        "taipan/a/two.py": "from .one import y\nfrom taipan.b.three import z\n",
        "taipan/b/three.py": "if TYPE_CHECKING:\n    from taipan.a import one\n",
    }
    assert cycles_over_packages(example) == [["taipan.a.one", "taipan.a.two", "taipan.b.three"]]
    found = [" ".join(cycle) for cycle in cycles_over_packages(source_files())]
    assert not found, "\n".join(found)


def repeated_classes(files: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of public classes that more than one file has, each with these files."""
    found: dict[str, list[str]] = {}
    for file, source in files.items():
        classes = (node.name for node in ast.walk(parsed(source)) if isinstance(node, ast.ClassDef))
        for name in {each for each in classes if not each.startswith("_")}:
            found.setdefault(name, []).append(file)
    return {name: names for name, names in sorted(found.items()) if len(names) > 1}


def test_a_class_name_has_one_meaning() -> None:
    example = {"taipan/a.py": "class Link: ...\nclass _Own: ...\n", "taipan/b.py": "class Link: ...\nclass _Own: ...\n"}
    assert repeated_classes(example) == {"Link": ["taipan/a.py", "taipan/b.py"]}
    found = repeated_classes(source_files())
    assert {name for name, files in found.items() if any(file.count("/") == 1 for file in files)} == PUBLIC_NAMES
    wrong = [f"{name}: {', '.join(files)}" for name, files in found.items() if name not in PUBLIC_NAMES]
    assert not wrong, "\n".join(wrong)


def test_the_lowest_parts_know_no_loop_no_log_no_clock() -> None:
    found = []
    for file, source in source_files().items():
        part = part_of(module_of(file))
        if part is not None and part.name in WITHOUT_LOOP:
            imports = {each.split(".")[0] for each in imports_of(file, source, set())}
            for imported in sorted(imports - {"taipan", NATIVE}):
                if imported not in sys.stdlib_module_names or imported in FORBIDDEN:
                    found.append(f"{file} imports {imported}")
    assert not found, "\n".join(found)


def test_every_package_and_module_says_what_it_is() -> None:
    """A package by a docstring of some sentences and nothing else: importing it costs nothing."""
    files = source_files()
    found = []
    for file, source in files.items():
        tree = parsed(source)
        docstring = ast.get_docstring(tree)
        if not docstring:
            found.append(f"{file} has no docstring")
        elif file.endswith("__init__.py") and file.count("/") > 1:
            allowed = 2 if file == "taipan/broker/__init__.py" else 1  # it decides which modules are compiled ones
            if docstring.count(".") < 2 or len(tree.body) > allowed:
                found.append(f"{file} is not a docstring of some sentences, and that alone")
        if f"{file.rpartition('/')[0]}/__init__.py" not in files:
            found.append(f"{file} is in no package")
    assert not found, "\n".join(found)


NAMES_OF_SINKS = (
    # The form of EMQX's exports, its list of plugins, and what a bridge of another broker becomes.
    "taipan/management/operations/backup/emqx_formats.py",
    "taipan/management/operations/backup/import_file.py",
    "taipan/management/operations/modules.py",
    "taipan/management/migrate/emqx.py",
    "taipan/management/migrate/mosquitto_bridges.py",
)
"""Files that name types of sinks, since a specification does."""


def test_nothing_but_its_folder_names_a_sink() -> None:
    """The names of its types, and its modules."""
    files = source_files()
    modules = {module_of(file) for file in files}
    names = {}
    for folder in {_sink_of(file) for file in files} - {""}:
        place = f"taipan.ruleengine.sinks.{folder}"
        types = [*import_module(f"{place}.resource").RESOURCES, *import_module(f"{place}.action").ACTIONS]
        assert types, folder
        names |= {each.name: folder for each in types}
    found = []
    for file, source in files.items():
        mine = _sink_of(file)
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.Constant) and names.get(str(node.value), mine) != mine:
                if file not in NAMES_OF_SINKS:
                    found.append(f"{file}:{node.lineno} names {node.value}")
        for imported in imports_of(file, source, modules):
            other = _sink_of(imported.replace(".", "/") + "/")
            if other and other != mine:
                found.append(f"{file} imports {imported}")
    assert not found, "\n".join(found)


def _sink_of(file: str) -> str:
    """The folder of the sink that a file belongs to; empty: none."""
    inside = file.removeprefix("taipan/ruleengine/sinks/")
    return inside.partition("/")[0] if inside != file and "/" in inside else ""


def makers(files: Mapping[str, str], name: str) -> set[str]:
    """The files that create an object of this class."""
    return {
        file
        for file, source in files.items()
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    }


def test_what_a_run_is_is_said_where_it_is_made() -> None:
    """So whoever has a ``Run`` need not look at its messages again."""
    assert makers({"a.py": "x = Run(1)", "b.py": "def f(run: Run) -> Run: ..."}, "Run") == {"a.py"}
    assert makers(source_files(), "Run") == {"taipan/broker/mqtt/run.py", "taipan/broker/mqtt/run_decoder.py"}


def test_no_file_of_the_broker_is_too_long_to_read() -> None:
    lengths = {file: source.count("\n") for file, source in source_files().items() if file.startswith("taipan/broker/")}
    long = {file for file, length in lengths.items() if length > MOST_LINES and "/cluster/" not in file}
    assert not long, long


def test_no_function_is_there_to_say_that_it_is_not() -> None:
    """A method that answers AssertionError belongs to a protocol that asks too much: split it, so that what a class
    does not have is None. What cannot be reached need not be written."""
    example = 'def a():\n    raise AssertionError("never")\ndef b():\n    raise AssertionError\n'
    assert raised_assertions(ast.parse(example)) == [2, 4]
    found = [f"{file}:{line}" for file, source in source_files().items() for line in raised_assertions(parsed(source))]
    assert not found, "\n".join(found)


def raised_assertions(tree: ast.AST) -> list[int]:
    """The lines that raise AssertionError."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(raised, ast.Name) and raised.id == "AssertionError":
                lines.append(node.lineno)
    return lines


def test_the_broker_logs_and_never_prints() -> None:
    found = [
        f"{file}:{node.lineno} {node.func.id}"
        for file, source in source_files().items()
        if file.startswith("taipan/broker/")
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in INTERACTIVE
    ]
    assert not found, "\n".join(found)
