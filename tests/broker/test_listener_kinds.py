"""What the types of listeners are, and that nothing else compares their names."""

import ast
from pathlib import Path

import pytest

from taipan.broker.listener_kinds import LISTENER_KINDS, find_kind, words

ROOT = Path(__file__).parents[2]
ONLY_HERE = {"ssl", "ws", "wss", "unix"}
FOREIGN = {
    # The words of other systems, which are not types of ours: URLs of bridges, options of aMQTT and of Mosquitto.
    "ruleengine/sinks/mqtt_bridge/resource.py",
    "management/migrate/amqtt.py",
}


@pytest.mark.parametrize(
    "name, protocol, port", [("tcp", "mqtt:tcp", 1883), ("ssl", "mqtt:ssl", 8883), ("ws", "mqtt:ws", 8083)]
)
def test_as_emqx_names_them(name: str, protocol: str, port: int) -> None:
    kind = LISTENER_KINDS[name]
    assert (kind.name, kind.protocol, kind.port, kind.local) == (name, protocol, port, False)


def test_found_by_what_they_are() -> None:
    assert [find_kind(tls=tls, websocket=ws).name for ws in (False, True) for tls in (False, True)] == [
        "tcp", "ssl", "ws", "wss",
    ]  # fmt: skip
    assert find_kind(tls=False, websocket=False, local=True).name == "unix"
    with pytest.raises(StopIteration):
        find_kind(tls=True, websocket=False, local=True)


def test_words() -> None:
    assert words(["unix"]) == "unix"
    assert words(["tcp", "ssl", "ws"]) == "tcp, ssl or ws"


def test_nothing_else_compares_their_names() -> None:
    """Not with ``==`` or ``in``, nor as the key of a table."""
    found = []
    for package in ("broker", "management", "ruleengine", "taipan"):
        for file in sorted((ROOT / package).rglob("*.py")):
            relative = str(file.relative_to(ROOT))
            if relative in FOREIGN or any(each.is_symlink() for each in file.parents):
                continue
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
                named = {each.value for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)}
                if ONLY_HERE & {each for each in named if isinstance(each, str)}:
                    found.append(f"{relative}:{node.lineno}")
    assert not found
