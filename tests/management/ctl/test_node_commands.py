"""status, broker, vm, modules, log."""

import logging
import re

import pytest

from taipan.broker.observability.log_ring import ring
from tests.support.api import managed_node
from tests.support.ctl import ctl, ctl_json, done, refused

pytestmark = pytest.mark.asyncio


async def test_status() -> None:
    async with managed_node() as node:
        assert await done(node, "status") == [f"Node '{node.name}' {node.server.version} is started"]
        status = await ctl_json(node, "status")
        assert status.keys() == (await node.api.get(f"/nodes/{node.name}")).data.keys()


async def test_broker() -> None:
    async with managed_node() as node:
        lines = await done(node, "broker")
        assert lines[:2] == ["sysdescr  : Taipan Broker", f"version   : {node.server.version}"]
        assert re.fullmatch(r"uptime    : \d+ seconds", lines[2])
        assert re.fullmatch(r"datetime  : \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", lines[3]) and len(lines) == 4
        assert (await ctl_json(node, "broker"))["node"] == node.name


@pytest.mark.parametrize("what", ["stats", "metrics"])
async def test_broker_figures(what: str) -> None:
    async with managed_node() as node:
        lines = await done(node, "broker", what)
        figures = await ctl_json(node, "broker", what)
        assert lines == [f"{key[:30]:<30}: {figures[key]}" for key in sorted(figures)]
        assert ("connections.count" if what == "stats" else "bytes.received") in figures


@pytest.mark.parametrize(
    "group, keys",
    [
        ("load", ["cpu/load1", "cpu/load5", "cpu/load15"]),
        ("memory", ["memory/total", "memory/used"]),
        ("process", ["process/limit", "process/count"]),
        ("io", ["io/max_fds", "io/active_fds"]),
        ("ports", ["ports/count", "ports/limit"]),
    ],
)
async def test_vm(group: str, keys: list[str]) -> None:
    async with managed_node() as node:
        lines = await done(node, "vm", group)
        assert [line[:24].rstrip() for line in lines] == keys
        assert all(re.fullmatch(r".{24}: \d+(\.\d\d)?", line) and float(line[26:]) >= 0 for line in lines)
        everything = await done(node, "vm")
        assert len(everything) == 11 and {line[:24].rstrip() for line in everything} >= set(keys)
        assert len(await done(node, "vm", "all")) == 11
        assert (await ctl(node, "vm", "nonsense")).status == 1


async def test_vm_counts_what_is_open() -> None:
    async with managed_node() as node:
        before = (await ctl_json(node, "vm", "io"))["io/active_fds"]
        with open("/dev/null") as _, open("/dev/null") as _:
            assert (await ctl_json(node, "vm", "io"))["io/active_fds"] == before + 2


@pytest.mark.parametrize("enabled, word", [(True, "true"), (False, "false")])
async def test_modules_list(enabled: bool, word: str) -> None:
    async with managed_node(slow_subscriptions={"enabled": enabled}, delayed={"enabled": not enabled}) as node:
        lines = await done(node, "modules", "list")
        assert f"Module(emqx_mod_slow_subs, description=Slow subscriptions, active={word})" in lines
        records = await ctl_json(node, "modules", "list")
        active = {each["name"]: each["active"] for each in records}
        assert active["emqx_mod_slow_subs"] is enabled and active["emqx_mod_delayed"] is not enabled
        assert "emqx_mod_topic_metrics" in active and list(active) == sorted(active)


async def test_log_levels() -> None:
    root, named = logging.getLogger(), logging.getLogger("taipan.broker.server")
    before = root.level
    async with managed_node() as node:
        try:
            assert await done(node, "log", "set-level", "error") == ["error"]
            assert root.level == logging.ERROR
            assert await done(node, "log", "primary-level") == ["error"]
            assert await done(node, "log", "primary-level", "warning") == ["warning"]
            assert await done(node, "log", "set-level", "debug", "taipan.broker.server") == ["debug"]
            assert named.level == logging.DEBUG and root.level == logging.WARNING
            lines = await done(node, "log", "list")
            assert lines[0] == "Logger(name=primary, level=warning)"
            assert "Logger(name=taipan.broker.server, level=debug)" in lines
            assert await done(node, "log", "set-level", "inherit", "taipan.broker.server") == ["warning"]
            assert named.level == logging.NOTSET
            loud = await ctl(node, "log", "set-level", "loud")
            assert loud.status == 1 and loud.out.startswith("error: argument Level: expected one of debug, info")
            assert (await ctl(node, "log", "set-level", "inherit")).status == 1
            assert (await ctl(node, "log", "set-level", "info", "no.such.logger")).status == 1
            assert "no.such.logger" not in root.manager.loggerDict
        finally:
            root.setLevel(before)
            named.setLevel(logging.NOTSET)


async def test_log_handlers() -> None:
    handler = logging.NullHandler()
    handler.name = "a-test"
    logging.getLogger().addHandler(handler)
    try:
        async with managed_node() as node:
            line = "LogHandler(id=a-test, level=debug, destination=NullHandler, status=started)"
            assert line in await done(node, "log", "handlers", "list")
            assert await done(node, "log", "handlers", "set-level", "a-test", "error") == ["error"]
            assert handler.level == logging.ERROR
            assert (await ctl(node, "log", "handlers", "set-level", "none", "error")).status == 1
    finally:
        logging.getLogger().removeHandler(handler)


async def test_help() -> None:
    async with managed_node() as node:
        lines = await done(node, "help")
        assert lines[0].startswith("Usage: taipan-ctl") and any(line.startswith("clients kick") for line in lines)
        nothing = await ctl(node)
        assert nothing.status == 2 and nothing.err.splitlines() == lines and nothing.out == ""
        for words in (("clients",), ("acl",)):
            lines = await done(node, "help", *words)
            assert len(lines) > 2 and {line.split()[0] for line in lines} == set(words)
        assert await refused(node, "help", "clint") == 'command clint: unknown; did you mean "clients"?'
        part = await ctl(node, "clients", "nonsense")
        assert part.status == 2 and part.err.splitlines()[0] == "error: command clients nonsense: unknown"
        assert [line.split()[0] for line in part.err.splitlines()[1:]] == ["clients"] * 3


async def test_log_show() -> None:
    async with managed_node() as node:
        ring.add(
            ["2026-10-01T14:03:11.000 WARNING taipan.broker.channel client_refused client_id=porch-77 reason=banned"]
        )
        ring.add(["2026-10-01T14:03:12.000 INFO taipan.broker.channel client_connected client_id=porch-77"])
        assert len(await done(node, "log", "show", "--like", "porch-77")) == 2
        (line,) = await done(node, "log", "show", "--like", "porch-77", "--level", "warning")
        assert line.endswith("client_id=porch-77 reason=banned")
        (line,) = await done(node, "log", "show", "--like", "porch-77", "--count", "1")
        assert "client_connected" in line
        assert (await ctl(node, "log", "show", "--level", "loud")).status == 1
        assert (await ctl(node, "log", "show", "--count", "0")).status == 1
