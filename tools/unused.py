"""``make unused``: unused names in the packages, found by vulture.

Names that only tests use are unused, too. ``EXCUSED`` lists exceptions with their reasons; an exception that is no
longer needed is a finding as well.
"""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from vulture import Vulture

ROOT = Path(__file__).resolve().parents[1]
PATHS = ("broker", "ruleengine", "management", "taipan")
REGISTERED = ["@register", "@commands.add", "@routes.*", "@root_routes.*"]
"""Decorators that register a function in a table: SQL functions, commands of taipan-ctl, endpoints."""
COUNTERS = ["packets_*", "messages_*", "client_auth_*", "client_acl_*", "bytes_*", "rules_matched", "actions_*"]
"""Names of counters: adding to them is not a use, and ``Metrics.snapshot`` reads them all."""
PUBLIC = "taipan/"
"""Names for other programs; what they call is used."""
ANSWERS = (
    "management/",
    "ruleengine/records.py",
    "broker/cluster/wire.py",
    "broker/cluster/moving/session_transfer.py",
)
EXCUSED = {
    "broker/access/key_set.py": ("named in a type that is given as text", "AllowedPublicKeys"),
    "broker/gateways/lwm2m/objects.py": (
        "expat calls them",
        "CharacterDataHandler EndElementHandler StartDoctypeDeclHandler StartElementHandler",
    ),
    "broker/mqtt/reason_codes.py": (
        "the standard's table, whole",
        """DISCONNECT_WITH_WILL GRANTED_QOS_0 GRANTED_QOS_1 GRANTED_QOS_2 MAXIMUM_CONNECT_TIME
        SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED""",
    ),
    "broker/transport/large_packets.py": ("asyncio calls it, with this", "sizehint"),
    "broker/transport/acceptor.py": ("Python reads it", "__class__"),
    "broker/transport/tls_resumption.py": ("ssl gives certificates with them", "notBefore notAfter"),
    "broker/transport/tls.py": ("ssl reads it", "num_tickets"),
    "broker/transport/websocket.py": (
        "websockets calls it and reads these",
        "select_subprotocol max_fragment_size max_message_size",
    ),
    "management/http/app.py": ("aiohttp reads it", "output_size"),
    "management/log_lines.py": ("logging reads them", "_srcfile logMultiprocessing logProcesses logThreads"),
    "ruleengine/config.py": ("read by its name, as a resource or an action may have its own", "retry_attempts"),
    "broker/core/rewrite_rules.py": ("re2 reads them", "log_errors max_mem"),
    "ruleengine/functions/regexes.py": ("re2 reads them", "log_errors max_mem never_capture"),
    "ruleengine/rules/hook_bindings.py": ("the hook calls with it", "is_new"),
    "ruleengine/sql/parser.py": (
        "lark calls a method for each rule of the grammar, and reads the terminals that it expected at an error",
        "always_accept conjunction decimal expr foreach interactive_parser list_of product range_of star",
    ),
    "ruleengine/functions/undefined.py": ("copy calls with it", "memo"),
}


NAMED = re.compile(r'"taipan[\w.]+:(\w+)"')


class Finding(NamedTuple):
    file: str
    line: int
    kind: str
    name: str


def struct_fields(file: Path) -> set[int]:
    """Return the lines of struct fields, which msgspec reads and writes automatically."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    structs = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and any(map(_is_struct, each.bases))]
    return {field.lineno for struct in structs for field in struct.body if isinstance(field, ast.AnnAssign)}


def named_by_text(root: Path) -> list[str]:
    """Return the names in declarations of access sources and in entry points, such as ``module:name``."""
    files = [*sorted((root / "broker" / "access").glob("*/declaration.py")), root / "pyproject.toml"]
    files = [file for file in files if file.exists()]
    return [name for file in files for name in NAMED.findall(file.read_text(encoding="utf-8"))]


def _is_struct(base: ast.expr) -> bool:
    return ast.unparse(base) in ("Struct", "msgspec.Struct")


def unused(root: Path, paths: tuple[str, ...]) -> list[Finding]:
    """Return unused names by file and line. Fields of the structs of ``ANSWERS`` are used: they are bodies and answers
    of the API, or go from node to node."""
    vulture = Vulture(ignore_names=[*COUNTERS, *named_by_text(root)], ignore_decorators=REGISTERED)
    vulture.scavenge([str(root / path) for path in paths])
    found = []
    for item in vulture.get_unused_code():
        path = Path(item.filename)
        file = path.relative_to(root).as_posix()
        if file.startswith(PUBLIC):
            continue
        if not (file.startswith(ANSWERS) and item.first_lineno in struct_fields(path)):
            found.append(Finding(file, item.first_lineno, item.typ, item.name))
    return sorted(found)


def faults(findings: list[Finding], excused: dict[str, tuple[str, str]] = EXCUSED) -> list[str]:
    """Return unused names without an exception, and exceptions that are not needed."""
    names = defaultdict(set)
    lines = []
    for each in findings:
        names[each.file].add(each.name)
        if each.name not in excused.get(each.file, ("", ""))[1].split():
            lines.append(f"{each.file}:{each.line}: {each.kind} {each.name} is not used")
    for file, (_, text) in excused.items():
        lines += [
            f"{file}: {name} is used, or gone: it needs no excuse" for name in text.split() if name not in names[file]
        ]
    return lines


def main() -> int:
    lines = faults(unused(ROOT, PATHS))
    print("\n".join(lines) or "Nothing is unused.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
