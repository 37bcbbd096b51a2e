"""What docs/tutorial.md prints under "Several nodes", run as it is printed: NATS and three real nodes.

Only ports, secrets and process ids are others than in the text.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.make import make
from tests.support.nats_server import nats_server_program
from tests.support.node import free_port

from .test_tutorial import Lines, Terminal, directory, eventually, section, what_is_printed_wants

__all__ = ["directory"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

ROOT = Path(__file__).parents[2]
PRINTED = {"taipan1": ("1883", "8081"), "taipan2": ("1884", "8082"), "taipan3": ("1885", "8083")}


class Cluster:
    """What ``make cluster`` starts."""

    def __init__(self, lines: list[str]) -> None:
        ready = (
            r"(taipan\d)@127\.0\.0\.1 ready: mqtt 127\.0\.0\.1:(\d+), management http://127\.0\.0\.1:(\d+), pid (\d+)"
        )
        found = [match.groups() for line in lines if (match := re.fullmatch(ready, line))]
        self.pids = {name: pid for name, _, _, pid in found}
        self.ports = {}
        for name, mqtt, management, _ in found:
            self.ports |= dict(zip(PRINTED[name], (mqtt, management), strict=True))
        [self.line] = [line for line in lines if re.fullmatch(r"TAIPAN=admin:\S+", line)]


@contextmanager
def cluster(*arguments: str) -> Iterator[Cluster]:
    nats_server_program()
    command = [sys.executable, "-m", "taipan", "cluster", "try", *arguments]
    command += ["--port", str(free_port()), "--management-port", str(free_port()), "--dashboard-port", str(free_port())]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )
    lines = Lines(process)
    try:
        yield Cluster(lines.until(lambda line: line.endswith("Ctrl-C stops everything"), 90.0))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        lines.end()


@contextmanager
def terminal(directory: Path, nodes: Cluster) -> Iterator[Terminal]:
    opened = Terminal(directory, nodes.ports)
    opened.run(f"{nodes.line}\nAPI=http://127.0.0.1:8081/api/v4")
    try:
        yield opened
    finally:
        opened.end()


def client(opened: Terminal, management: str = "8081") -> dict[str, Any]:
    """The record of the client ``porch``, where it is connected and has subscribed."""
    [answer] = opened.answers(f"curl -u $TAIPAN http://127.0.0.1:{management}/api/v4/clients/porch")
    for record in answer.get("data", []):
        if record["connected"] and record["subscriptions_cnt"]:
            return dict(record)
    return {}


def test_the_makefile_starts_what_this_does() -> None:
    said = make("-n", "cluster", "ARGS=--share-port", directory=ROOT)
    assert said.stdout.splitlines()[-1].endswith("bin/taipan cluster try --share-port")


def test_several_nodes_work_as_printed(directory: Path) -> None:
    what_is_printed_wants()
    text = section("Several nodes")
    started, subscribe, cross, move, kill, after = re.findall(r"^```\n(.*?)^```$", text, re.M | re.S)
    assert started == "make cluster\n" and "`make cluster ARGS=--share-port`" in text
    with cluster() as nodes, terminal(directory, nodes) as opened:
        opened.run(subscribe)
        eventually(lambda: bool(client(opened)))
        opened.run(cross)
        opened.saw("garden/temperature 21.5")
        opened.run(move)
        opened.saw("garden/temperature 22")
        eventually(lambda: client(opened, "8083").get("node") == "taipan2@127.0.0.1")
        assert opened.lines.count("garden/temperature 21.5") == opened.lines.count("garden/temperature 22") == 1
    with cluster("--share-port") as nodes, terminal(directory, nodes) as opened:
        listen, look, end = kill.splitlines()
        assert end == "kill -9 4711"
        opened.run(listen)
        eventually(lambda: bool(client(opened)))
        [answer] = opened.answers(look)
        name = answer["data"][0]["node"].partition("@")[0]
        os.kill(int(nodes.pids[name]), signal.SIGKILL)
        other = next(management for node, (_, management) in PRINTED.items() if node != name)
        eventually(lambda: client(opened, other).get("node", name).partition("@")[0] != name)
        opened.run(after)
        opened.saw("garden/temperature 23")


def test_two_nodes_of_the_page_on_clusters(directory: Path) -> None:
    """``taipan cluster try --nodes 2``, and a message from one node to the other, as docs/cluster.md prints it."""
    what_is_printed_wants()
    page = (ROOT / "docs" / "cluster.md").read_text("utf-8").split("\n## ")[0]
    [commands] = re.findall(r"(?ms)^```\n(.*?)^```$", page)
    assert "`--nodes 2`" in page
    subscribe, publish = commands.splitlines()
    with cluster("--nodes", "2") as nodes, terminal(directory, nodes) as opened:
        opened.run(f"{subscribe} &")

        def arrives() -> bool:
            opened.run(publish)
            return "garden/temperature 21.5" in opened.lines

        eventually(arrives)
