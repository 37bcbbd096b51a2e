"""A source of access is named in its own package, and in no other file.

So a new source is a package. Each exception names the file, the names that it may have, and
why; an exception that is no longer needed fails.
"""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from taipan.broker.access.registry import ACCESS_SOURCES

ROOT = Path(__file__).resolve().parents[1]
STORED: Final = "the endpoints of the specification, and what goes with them, write stored users and rules"
WORD: Final = "the word has another meaning here"
NAMESAKES: Final = ("management/migrate/", "ruleengine/sinks/")
"""Where plugins of other brokers and resources of rules may have the name of a source."""
EXCEPTIONS: Final = (
    (
        STORED,
        "stored",
        """broker/channel/user_changes.py broker/node_cluster.py broker/server.py broker/store_alarms.py
        management/api/acl.py management/api/auth_mnesia.py management/api/credentials.py
        management/ctl/access_commands.py management/ctl/changed_objects.py management/operations/acl.py
        management/operations/backup/backup.py
        management/operations/backup/emqx_formats.py management/operations/backup/export_file.py
        management/operations/backup/import_changes.py management/operations/backup/import_file.py
        management/operations/backup/import_plan.py management/operations/users.py""",
    ),
    (STORED, "configuration", "management/operations/users.py"),  # whose users these endpoints do not change
    (
        WORD,
        "http",
        """broker/node_gauges.py broker/setting_rules.py management/ctl/remote.py management/http/openapi.py
        management/alarm_targets/kinds.py management/management_server.py management/configuration/settings.py
        ruleengine/params.py taipan/keywords.py""",
    ),
    (
        "its provider is also asked about messages and receives events, and has a table of its own for that",
        "exhook",
        """management/configuration/config.py management/configuration/settings_validation.py
        ruleengine/exhook/inspector.py ruleengine/exhook/plugin.py ruleengine/exhook/provider.py
        ruleengine/exhook/requests.py""",
    ),
    (WORD, "jwt", "broker/cluster/nats/connection.py broker/observability/masking.py"),
    (
        WORD,
        "stored",
        (
            "broker/cluster/links/link_receiver.py broker/cluster/moving/claims.py broker/core/inspection.py"
            " broker/mqtt/message.py ruleengine/rules/rule.py"
        ),
    ),
    (
        WORD,
        "configuration",
        """management/commands/doctor.py management/configuration/config_document.py
        management/operations/apps.py""",
    ),
)


def named_in(source: str, names: Collection[str]) -> Iterator[str]:
    """Each name that stands there as a text, in a setting within a text, or in an import of its package."""
    in_setting = re.compile(rf"\baccess\.({'|'.join(names)})\b")
    for node in ast.walk(_without_docstrings(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in names:
                yield node.value
            yield from in_setting.findall(node.value)
        elif isinstance(node, ast.ImportFrom):
            yield from in_setting.findall(node.module or "")
            if (node.module or "").endswith("access"):
                yield from (each.name for each in node.names if each.name in names)
        elif isinstance(node, ast.Import):
            yield from (found for each in node.names for found in in_setting.findall(each.name))


def _without_docstrings(source: str) -> ast.Module:
    """These may name an example."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_text(each)] or [ast.Pass()]
    return tree


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_no_other_file_names_a_source() -> None:
    names = [source.name for source in ACCESS_SOURCES]
    example = '"""jwt"""\nfrom .access.http.source import x\nfrom .access import jwt\na = "stored", "access.http.x"\n'
    assert list(named_in(example, names)) == ["http", "jwt", "stored", "http"]
    found: set[tuple[str, str]] = set()
    for top in ("broker", "management", "ruleengine", "taipan"):
        for path in (ROOT / top).rglob("*.py"):
            file = path.relative_to(ROOT).as_posix()
            own = [name for name in names if file.startswith(f"broker/access/{name}/")]
            if not own and not file.startswith(NAMESAKES):
                found |= {(file, name) for name in named_in(path.read_text("utf-8"), names)}
    allowed = {(file, name) for _, name, files in EXCEPTIONS for file in files.split()}
    assert not found - allowed, "named outside of its package"
    assert not allowed - found, "no longer needed"
