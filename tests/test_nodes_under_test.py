"""What tests have of ``tests.support.node``: ports that nobody else takes, and nothing left of a node that failed."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from taipan.broker.transport.listener import ListenerError
from tests.support.api import ManagedNode, managed_node
from tests.support.node import Node, NodeProcess, free_port, make_settings, start_node
from tests.support.rule_engine_node import rule_engine_node

TAKE = "from tests.support.node import free_port; print(*(free_port() for _ in range(2750)))"


def test_a_port_is_found_free_once(tmp_path: Path) -> None:
    """By this process and by another one that looks at the same ports, as the worker of a second run beside this."""
    mine = [free_port() for _ in range(50)]
    assert len(set(mine)) == 50
    # It goes round all of its ports: those that are ours are passed over.
    told = subprocess.run(
        [sys.executable, "-c", TAKE], cwd=Path(__file__).parents[1], env=os.environ, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert len(told.stdout.split()) == 2750 and not set(mine) & set(map(int, told.stdout.split()))


@pytest.mark.asyncio
async def test_a_server_gets_the_port_and_a_second_one_does_not() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port)
    with pytest.raises(OSError):
        await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port)
    server.close()
    await server.wait_closed()


def handlers() -> list[logging.Handler]:
    names = ("taipan.broker", "taipan.management", "taipan.ruleengine", "aiohttp")
    return [handler for name in names for handler in logging.getLogger(name).handlers]


async def _end_badly(made: AbstractAsyncContextManager[Node]) -> None:
    async with made as node:
        stop = node.server.stop

        async def fail() -> None:
            await stop()
            raise RuntimeError("as told")

        node.server.stop = fail  # type: ignore[method-assign]


@pytest.mark.asyncio
async def test_a_node_that_does_not_start_or_stop_leaves_no_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    before = handlers()
    taken = make_settings(listeners=[{"type": "tcp"}])
    bind = taken.listeners[0].bind
    with socket.create_server(("127.0.0.1", int(bind.rpartition(":")[2]))), pytest.raises(ListenerError):
        await start_node(listeners=[{"type": "tcp", "bind": bind}])
    assert handlers() == before
    for made in (managed_node, rule_engine_node):
        with pytest.raises(RuntimeError, match="as told"):
            await _end_badly(made())
        assert handlers() == before
    async with managed_node() as node:

        async def fail_at_once(self: object) -> None:
            raise RuntimeError("as told")

        monkeypatch.setattr(type(node.management), "start", fail_at_once)
        other = ManagedNode(make_settings(), node.management.settings)
        with pytest.raises(RuntimeError, match="as told"):
            await other.start()
    assert handlers() == before


@pytest.mark.asyncio
async def test_a_process_that_does_not_become_ready_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeProcess, "command", (sys.executable, "-c", "import time; time.sleep(1000)"))
    node = NodeProcess(tmp_path / "taipan.toml")
    with pytest.raises(TimeoutError):
        await node.start(0.1)
    assert node.process.returncode == -signal.SIGKILL


async def three_turns_of_the_ticker() -> None:
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_test_that_lets_time_pass_has_no_other() -> None:
    async with rule_engine_node() as node:
        await node.pass_time(0)  # what was due already
        swept: list[float] = []
        node.server.ticker.every(1.0, swept.append)
        now = node.clock.now()
        await three_turns_of_the_ticker()
        assert node.clock.now() == now and not swept
        await node.pass_time(1)
        await node.pass_time(0.5)
        await node.pass_time(0.5)
        assert swept == [now + 1, now + 2]


@pytest.mark.asyncio
async def test_time_stands_still_where_a_test_says_so() -> None:
    async with rule_engine_node() as node:
        await three_turns_of_the_ticker()
        now = node.clock.now()
        await node.stand_still()
        assert node.clock.now() > now
        now = node.clock.now()
        await three_turns_of_the_ticker()
        assert node.clock.now() == now
