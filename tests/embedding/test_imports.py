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


BARE = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "msgspec":
            raise ModuleNotFoundError("No module named 'msgspec'", name="msgspec")
sys.meta_path.insert(0, Without())
"""


def test_the_wrong_interpreter_is_named() -> None:
    """In a clone the folder is imported by every Python that runs there; only one has what it wants."""
    for code in ("import taipan; taipan.Node", "from taipan import Node"):
        done = subprocess.run(
            [sys.executable, "-c", BARE + code], capture_output=True, text=True, timeout=60, check=False
        )
        last = done.stderr.splitlines()[-1]
        assert last.startswith(f"ModuleNotFoundError: No module named 'msgspec': {sys.executable} does not have"), last
    start = BARE + "import runpy; runpy.run_module('taipan', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"taipan: No module named 'msgspec': {sys.executable} does not have the packages"), line


@pytest.mark.asyncio
async def test_properties_are_changed_as_the_page_says() -> None:
    import taipan

    async with taipan.Node(durability="memory", listeners=["tcp://127.0.0.1:0"]) as node:

        @node.on_message_publish
        def with_type(message: taipan.Message) -> taipan.Message:
            return message.replace(properties={**message.properties, "content_type": "text/plain"})

        subscription = node.subscribe("a")
        await node.publish("a", b"x", properties={"response_topic": "b"})
        assert (await anext(subscription)).properties == {"response_topic": "b", "content_type": "text/plain"}
