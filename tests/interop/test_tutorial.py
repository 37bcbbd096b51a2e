"""What docs/tutorial.md prints, run as it is printed: bash, curl and the Mosquitto clients, two real nodes.

Only ports, secrets and where the programs lie are others than in the text.
"""

import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import curl
from tests.support.absent import absent
from tests.support.mqtt_js import mqtt_js
from tests.support.node import free_port
from tests.support.patience import patience

from .clients.client import PATIENCE

pytestmark = [pytest.mark.timeout(90)]

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("TAIPAN_BIN", Path(sys.executable).parent))  # tests/test_wheel.py names those of a wheel
STARTS_IN = 50.0
# The ports that the tutorial has, and for each one of this test.
PORTS = {
    printed: str(free_port()) for printed in ("1883", "8083", "8081", "1884", "8084", "9081", "9900", "18083", "19083")
}
FIRST_NODE = (
    ".venv/bin/taipan --config config/taipan.toml --set listeners.0.bind=127.0.0.1:1883"
    " --set listeners.1.bind=127.0.0.1:8083 --set management.bind=127.0.0.1:8081"
    " --set dashboard.bind=127.0.0.1:18083"
)
# The answer of each curl on a line of its own, however the lines of mosquitto_sub fall between; all lines at once.
AT_A_TERMINAL = """
curl() { local answer; answer=$(command curl -sS "$@"); printf '%s\\n' "$answer"; }
mosquitto_pub() { command mosquitto_pub -p 1883 "$@"; }
mosquitto_sub() { exec stdbuf -oL mosquitto_sub -p 1883 "$@"; }
"""


def section(title: str) -> str:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def here(text: str, ports: Mapping[str, str] = PORTS) -> str:
    """The text with the ports of this test, and the programs and files where they are."""
    # All at once: a port of this test may be one that the tutorial has for something else.
    text = re.sub(rf"\b({'|'.join(ports)})\b", lambda found: ports[found[0]], text)
    return text.replace(".venv/bin/", f"{BIN}/").replace("config/taipan.toml", str(ROOT / "config/taipan.toml"))


class Lines:
    """The lines of a process, as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.seen: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def until(self, wanted: Callable[[str], bool], seconds: float = PATIENCE) -> list[str]:
        """The lines up to the first that is wanted, which is the last one."""
        found: list[str] = []
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                raise AssertionError(f"it did not come; only {found}") from None
            assert line is not None, f"ended after {self.seen}"
            self.seen.append(line)
            found.append(line)
            if wanted(line):
                return found

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Terminal:
    """A bash that gets one block of the page after the other, in a directory of its own."""

    def __init__(self, directory: Path, ports: Mapping[str, str] = PORTS) -> None:
        self._ports = ports
        self._process = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=directory,
            env={**os.environ, "PATH": curl.path(directory)},
        )
        self._lines = Lines(self._process)
        self._blocks = 0
        self.run(AT_A_TERMINAL)

    def run(self, block: str) -> list[str]:
        """What it printed until the block was done."""
        self._blocks += 1
        done = f"--- block {self._blocks}, status "
        assert self._process.stdin is not None
        self._process.stdin.write(f"{here(block, self._ports)}\necho '{done}'$?\n")
        self._process.stdin.flush()
        *lines, status = self._lines.until(lambda line: line.startswith(done))
        assert status == f"{done}0", lines
        return lines

    def answers(self, block: str) -> list[dict[str, Any]]:
        """Those of the block's curls."""
        return [json.loads(line) for line in self.run(block) if line.startswith("{")]

    @property
    def lines(self) -> list[str]:
        """All that was printed so far."""
        return self._lines.seen

    def saw(self, line: str, seconds: float = PATIENCE) -> None:
        """Wait for a line of something in the background, unless it was there already."""
        if line not in self._lines.seen:
            self._lines.until(lambda each: each == line, seconds)

    def end(self) -> None:
        self.run("kill $(jobs -p) 2>/dev/null; wait")
        self._lines.end()


class StartedNode:
    """The node that a command line of the page starts; the id and secret of the application that it printed."""

    def __init__(self, command: str, directory: Path, log: Path) -> None:
        with log.open("wb") as errors:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {here(command)}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=directory,
                env={name: value for name, value in os.environ.items() if not name.startswith("TAIPAN_")},
            )
        self._lines = Lines(process)
        try:
            self.printed = self._lines.until(lambda line: line.startswith("taipan ready"), STARTS_IN)
        except AssertionError as error:
            self._lines.end()
            raise AssertionError(f"{error}\n{log.read_text()}") from None
        [self.application] = re.findall(r"^  curl -u (\S+) http\S+$", "\n".join(self.printed), re.M)

    def stop(self) -> None:
        self._lines.end()
        assert self._lines.process.returncode == 0


def test_the_example_of_mqtt_js_runs_as_printed(directory: Path, node: StartedNode) -> None:
    """As an ``.mjs``: ``import`` is for modules, and ``node`` takes a ``.js`` for none."""
    program, modules = mqtt_js()
    printed = section("The first message")
    [name] = re.findall(r"`node (\S+)`", printed)
    [code] = re.findall(r"```js\n(.*?)```", printed, re.S)
    (directory / name).write_text(here(code))
    (directory / "node_modules").symlink_to(modules)
    process = subprocess.Popen(
        [program, name], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = Lines(process)
    try:
        lines.until(lambda line: line == "garden/temperature 21.5")
    finally:
        lines.end()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    if shutil.which("bash") is None:
        absent("bash")
    return tmp_path


@pytest.fixture
def node(directory: Path) -> Iterator[StartedNode]:
    started = StartedNode(FIRST_NODE, directory, directory / "first.log")
    yield started
    started.stop()


def what_is_printed_wants() -> None:
    """Skip the test where one of the programs that the page uses is missing."""
    for program in ("stdbuf", "mosquitto_sub", "mosquitto_pub"):
        if shutil.which(program) is None:
            absent(program)


@pytest.fixture
def terminal(directory: Path, node: StartedNode) -> Iterator[Terminal]:
    what_is_printed_wants()
    opened = Terminal(directory)
    yield opened
    opened.end()


def publish(port: str, password: str, topic: str) -> str:
    """What ``mosquitto_pub`` says of it as ann: nothing, where all is well."""
    command = ["mosquitto_pub", "-p", PORTS[port], "-V", "5", "-u", "ann", "-P", password, "-t", topic, "-m", "x", "-q"]
    return subprocess.run([*command, "1"], capture_output=True, timeout=PATIENCE, text=True).stderr


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(PATIENCE)
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def test_managing_it_works_as_printed(directory: Path, node: StartedNode, terminal: Terminal) -> None:
    text = section("Managing it")
    reach, user, client, other_node, export = re.findall(r"^```\n(.*?)^```$", text, re.M | re.S)

    def clients() -> list[dict[str, Any]]:
        [answer] = terminal.answers("curl -u $TAIPAN $API/clients/porch")
        assert answer["code"] == 0
        return list(answer["data"])

    # The first block, with the secret that was printed.
    reach, secrets = re.subn(r"^TAIPAN=\S+$", f"TAIPAN={node.application}", reach, flags=re.M)
    assert secrets == 1
    [brokers] = terminal.answers(reach)
    assert brokers["data"][0]["node_status"] == "Running"

    # Her password opens, her topics are hers, and nothing else is.
    assert [answer["data"] for answer in terminal.answers(user)] == [{"ann": "ok"}, {"ann": "ok"}]
    eventually(lambda: [each["subscriptions_cnt"] for each in clients()] == [1])
    assert publish("1883", "secret", "garden/gate") == ""
    assert "Not authorized" in publish("1883", "secret", "cellar/gate")
    assert "Bad User Name" in publish("1883", "wrong", "garden/gate")
    terminal.saw("garden/gate x")

    # Seen, sent to, explained, ended.
    record, published, explained, ended = terminal.answers(client)
    assert [(each["username"], each["connected"]) for each in record["data"]] == [("ann", True)]
    assert published["code"] == ended["code"] == 0
    terminal.saw("garden/lamp on")
    assert explained["data"]["connected"] is True
    assert [each["event"] for each in explained["data"]["events"]] == ["client_connected"]
    [explained] = terminal.answers("curl -u $TAIPAN $API/clients/porch/explain")
    assert ("client_disconnected", "kicked") in [
        (each["event"], each["reason"]) for each in explained["data"]["events"]
    ]
    eventually(lambda: [each["subscriptions_cnt"] for each in clients()] == [1])  # as the text says, it comes back
    assert "`kill %1`" in text
    terminal.run("kill %1")
    eventually(lambda: clients() == [])

    # To another node, where ann can then log in, and the application of the file replaces that of the same name.
    other = StartedNode(other_node, directory, directory / "other.log")
    try:
        export, secrets = re.subn(r"^OTHER=\S+$", f"OTHER={other.application}", export, flags=re.M)
        assert secrets == 1
        imported, users = terminal.answers(export)
        assert imported == {"code": 0, "data": {"replaced_apps": ["admin"], "replaced_users": ["admin"]}}
        assert [(each["login"], each["is_superuser"]) for each in users["data"]] == [("ann", False)]
        assert json.loads((directory / "export.json").read_text())["version"] == "4.4"
        assert publish("1884", "secret", "garden/gate") == ""
        assert "Not authorized" in publish("1884", "secret", "cellar/gate")
        assert "Bad User Name" in publish("1884", "wrong", "garden/gate")
        [refused] = terminal.answers("curl -u $OTHER http://127.0.0.1:9081/api/v4/brokers")
        assert refused["code"] == 103
    finally:
        other.stop()

    # The commands in running text; the first of them makes another application.
    commands = [each for each in re.findall(r"`([^`\n]+)`", text) if re.search(r"taipan-ctl \w", each)]
    commands = [each if each.startswith(".venv/bin/") else f".venv/bin/{each}" for each in commands]
    printed = [terminal.run(each) for each in commands]
    assert [each.split("taipan-ctl ")[1].split()[0] for each in commands] == ["mgmt", "clients", "explain", "help"]
    [secret] = [line.removeprefix("AppSecret: ") for line in printed[0]]
    [brokers] = terminal.answers(f"curl -u mine:{secret} $API/brokers")
    assert brokers["code"] == 0
    assert printed[1] == []  # nobody is there any more
    assert printed[2][0] == "Client(porch, connected=false)"
    assert any(line.startswith("mgmt insert <AppId> <Name>") for line in printed[3])


def test_a_rule_works_as_printed(node: StartedNode, terminal: Terminal) -> None:
    reach = re.findall(r"^```\n(.*?)^```$", section("Managing it"), re.M | re.S)[0]
    terminal.run(re.sub(r"^TAIPAN=\S+$", f"TAIPAN={node.application}", reach, flags=re.M))
    create, outage = re.findall(r"^```\n(.*?)^```$", section("A rule"), re.M | re.S)
    resource, rule = terminal.answers(create)
    assert resource["code"] == rule["code"] == 0
    terminal.saw('sink: {"temperature":21.5,"topic":"garden/bed"}')
    terminal.run(outage)
    rows = [f'sink: {{"temperature":{degrees},"topic":"garden/bed"}}' for degrees in (22, 23)]
    for row in rows:
        terminal.saw(row, 20.0)

    def figures() -> dict[str, int]:
        [answer] = terminal.answers("curl -u $TAIPAN $API/rules")
        [action] = answer["data"][0]["actions"]
        return dict(action["metrics"][0])

    eventually(lambda: figures()["success"] == 3)
    assert figures()["failed"] == 0
    assert [terminal.lines.count(row) for row in rows] == [1, 1]


def test_the_secret_is_printed_once(directory: Path, node: StartedNode) -> None:
    node.stop()
    again = subprocess.Popen(
        ["bash", "-c", f"exec {here(FIRST_NODE)}"], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    lines = Lines(again)
    try:
        [ready] = lines.until(lambda line: line.startswith("taipan ready"), STARTS_IN)
        assert ready.split()[:2] == ["taipan", "ready"]
    finally:
        lines.end()
