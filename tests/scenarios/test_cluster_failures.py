"""What a cluster does when something breaks: a test for each event, with clients of 3.1.1 and of 5.0."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.core.cluster import RUNNING
from tests.support.nats_credentials import KINDS, nats_credentials
from tests.support.nats_server import NatsServers
from tests.support.node import Node, free_port, make_settings
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


def statuses(node: Node) -> dict[str, str]:
    return {each.name: each.status for each in node.server.cluster.members()}


@asynccontextmanager
async def nodes_on(urls: list[str], directory: Path, count: int = 2, **cluster: Any) -> AsyncIterator[list[Node]]:
    """So many whole nodes on real NATS servers, which see each other."""
    nodes = []
    async with contextlib.AsyncExitStack() as stack:
        for number in range(1, count + 1):
            data = {"name": f"n{number}@127.0.0.1", "data_dir": str(directory / f"n{number}")}
            table = {"servers": urls, "strict_subscribe": True, **cluster}
            nodes.append(Node(make_settings(node=data, cluster=table, durability={"level": "disk"})))
            Path(data["data_dir"]).mkdir()
            await nodes[-1].start()
            stack.push_async_callback(nodes[-1].stop)
        names = {node.settings.node.name: RUNNING for node in nodes}
        await until(lambda: all(statuses(node) == names for node in nodes))
        yield nodes


def write_configuration(directory: Path, name: str, cluster: dict[str, Any]) -> Path:
    """For the command ``taipan``."""
    (directory / name).mkdir()
    table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in cluster.items())
    file = directory / f"{name}.toml"
    file.write_text(
        f'[node]\nname = "{name}@127.0.0.1"\ndata_dir = "{directory / name}"\n'
        f'[[listeners]]\nname = "a"\ntype = "tcp"\nbind = "127.0.0.1:{free_port()}"\n'
        f'[management]\nbind = "127.0.0.1:0"\n[cluster]\n{table}\n'
    )
    return file


async def command(*arguments: str) -> tuple[int, str, str]:
    """Exit status and output of ``taipan``."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "taipan.management.node", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def told(errors: str) -> list[str]:
    """The lines that are no line of the log."""
    return [line for line in errors.splitlines() if line.startswith("taipan: ")]


async def test_two_nodes_of_one_name(tmp_path: Path) -> None:
    """The second does not start, and says where the first is; the first goes on."""
    async with NatsServers() as servers, nodes_on(list(servers.urls), tmp_path) as (first, other):
        clients = [await first.client("old", 4), await first.client("new", 5)]
        file = write_configuration(tmp_path, "second", {"servers": list(servers.urls)})
        status, _, errors = await command("--config", str(file), "--set", "node.name=n1@127.0.0.1")
        assert status == 1 and "Traceback" not in errors
        (line,) = told(errors)
        assert "node.name: another node named n1@127.0.0.1 runs already: host " in line and ", pid " in line
        for client in clients:
            await client.nothing()
        assert statuses(other) == {"n1@127.0.0.1": RUNNING, "n2@127.0.0.1": RUNNING}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_credentials_of_nats(kind: str, tmp_path: Path) -> None:
    """The right ones make a cluster; with wrong ones a node does not start and says in one line which setting it is,
    and so does ``taipan check --connect``."""
    made = nats_credentials(kind, tmp_path)
    async with NatsServers(more=f"max_payload: 4MB\n{made.server}") as servers:
        urls = made.urls(servers)
        async with nodes_on(urls, tmp_path, **made.right) as nodes:
            assert not [name for node in nodes for name in node.server.alarms.active]
        right = write_configuration(tmp_path, "right", {"servers": urls, **made.right})
        wrong = write_configuration(tmp_path, "wrong", {"servers": urls, **made.wrong})
        status, said, _ = await command("check", "--connect", str(right))
        assert status == 0 and "ok; NATS: " in said
        for arguments in (("check", "--connect", str(wrong)), ("--config", str(wrong))):
            status, _, errors = await command(*arguments)
            assert status == 1 and "Traceback" not in errors
            (line,) = told(errors)
            assert line.removeprefix("taipan: ").removeprefix("cannot start: ").startswith(f"{made.setting}: ")
