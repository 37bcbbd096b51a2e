"""What a program, a test or a command does not use is not imported: aiohttp alone takes a third of a second."""

import subprocess
import sys

import pytest

HEAVY = (
    "aiohttp",
    "cryptography",
    "jwt",
    "lark",
    "multiprocessing",
    "websockets",
    "taipan.management.api",
    "taipan.management.http",
    "taipan.management.management_server",
)
BROKER = (*HEAVY, "taipan.broker.server", "taipan.ruleengine.engine")


@pytest.mark.parametrize(
    "code, unwanted",
    [
        ("import taipan; taipan.__version__", (*BROKER, "taipan.node")),
        ("import taipan.testing", HEAVY),
        ("import taipan; taipan.Node(durability='memory')", HEAVY),
        ("from taipan.testing import Broker\nwith Broker() as broker: broker.publish('a')", HEAVY),
        ("import taipan.management.node", BROKER),
    ],
    ids=["taipan", "testing", "node", "broker", "command"],
)
def test_what_is_not_imported(code: str, unwanted: tuple[str, ...]) -> None:
    shown = "\nimport sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code + shown], capture_output=True, text=True, timeout=60, check=True)
    imported = done.stdout.split()
    assert "taipan" in imported
    assert [name for name in unwanted if name in imported] == []
