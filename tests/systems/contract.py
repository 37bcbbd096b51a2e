"""What each sink promises with a real server: nothing is lost when it dies under load, one that hangs is given up, a
bad row stops no other, and rows wait for a password that was changed, and while a certificate has expired.

A module of tests imports everything from here, and defines the fixture ``system``. ``tests/ruleengine/sinks/contract``
has the rest, for all sinks."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import pytest

from taipan.broker.server import Server
from taipan.ruleengine.actions.action import ActionType
from taipan.ruleengine.delivery.buffer_store import TABLE
from taipan.ruleengine.delivery.buffered_row import BufferedRow
from taipan.ruleengine.resources.resource import ResourceType
from tests.support.certificates import Certificates
from tests.support.fake_engine import FakeEngine, FakeReport, published
from tests.support.node import make_settings, start_node
from tests.support.small_disk import fill, small_disk
from tests.support.waiting import until
from tests.systems.servers.process import ServerProcess
from tests.systems.servers.tls_gate import TlsGate

OPTIONAL = {
    "test_a_bad_row_stops_no_other_row": "bad row",
    "test_rows_wait_for_a_password_that_was_changed": "credentials",
}
"""The cases that a server may be without, by their tests."""
LOAD = 3000
CLIENTS = 5


class System(ABC):
    """A server that runs, with an empty place for rows of ``c`` and ``n``."""

    resource: ResourceType
    action: ActionType
    waits_shortly: ClassVar[dict[str, Any]] = {"insert_mode": "sync", "sync_timeout": 100}
    """Parameters of an action whose rows may wait for 0.1 seconds."""
    gives_up_soon: ClassVar[dict[str, Any]] = {"request_timeout": "300ms", "connect_timeout": "300ms"}
    """The configuration of a resource that does not wait long for an answer."""
    rows = LOAD
    """How many are written under load."""
    ordered = True
    """Whether the server keeps the order in which rows were written."""
    without: ClassVar[dict[str, str]] = {}
    """Cases of ``OPTIONAL`` that this server does not have, and why: their tests are deselected."""
    new_password = "ünöther€ %2F@"
    login_refused = ""
    """What the status says with a wrong password."""
    bad_row: ClassVar[dict[str, Any]] = {"c": "c0", "n": "no number"}
    bad_reason = ""
    """What is said of ``bad_row``, which its table does not accept."""

    def __init_subclass__(cls) -> None:
        assert cls.without.keys() <= set(OPTIONAL.values())

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._gate: TlsGate | None = None

    @abstractmethod
    def config(self) -> dict[str, Any]: ...

    @abstractmethod
    def params(self) -> dict[str, Any]:
        """Of an action that writes a row."""

    @abstractmethod
    def harm(self, row: int) -> None:
        """What is done to the server after a row has been handed to the action. It runs at the end."""

    @abstractmethod
    async def written(self) -> list[tuple[str, int]]:
        """The rows in their order there, those of a client at least."""

    def set_password(self, password: str) -> None:
        """Of the user of ``config``; connections end."""
        raise NotImplementedError

    async def certify(self, certificate: str, key: str) -> dict[str, Any]:
        """Let clients connect with TLS and this certificate, whose files these are. The connections of before end.
        Return what the configuration then has beside that of ``config``."""
        if self._gate is None:
            self._gate = TlsGate(self.server.port)
        await self._gate.certify(certificate, key)
        return {"server": f"127.0.0.1:{self._gate.port}", "ssl": True}

    async def uncertify(self) -> None:
        """As it was before ``certify``."""
        if self._gate is not None:
            await self._gate.close()

    def run(self, engine: FakeEngine, **config: Any) -> Any:
        return engine.run(self.resource, **{**self.config(), **config})

    def write(self, engine: FakeEngine, name: str, n: int, **params: Any) -> FakeReport:
        report = FakeReport()
        engine.action(self.action, name, report, **{**self.params(), **params}).run({"c": "c0", "n": n}, published())
        return report


@pytest.mark.asyncio
async def test_nothing_is_lost_when_it_dies_under_load_and_order_holds(engine: FakeEngine, system: System) -> None:
    made = system.run(engine)
    report = FakeReport()
    act = engine.action(system.action, report=report, **system.params())
    for n in range(system.rows):
        client = f"c{n % CLIENTS}"
        act.run({"c": client, "n": n}, published(client_id=client))
        if n % 250 == 0:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(system.harm, n) if n % 500 == 0 and n else None
    await until(lambda: report.count == system.rows)
    assert report.failures == []
    rows = await system.written()
    assert {n for _, n in rows} == set(range(system.rows))
    for client in range(CLIENTS):
        # A row whose answer was lost may have been written twice.
        mine = list(dict.fromkeys(n for c, n in rows if c == f"c{client}"))
        assert not system.ordered or mine == sorted(mine)
    assert made.status.buffer.dead_letters == 0


@pytest.mark.asyncio
async def test_one_that_hangs_is_given_up_in_time(engine: FakeEngine, system: System) -> None:
    """A row that may not wait fails; the others are written when it continues."""
    made = system.run(engine, **system.gives_up_soon)
    first = system.write(engine, "action_first", 0)
    await until(lambda: first.count == 1)
    system.server.pause()
    try:
        waits = system.write(engine, "action_waits", 1)
        fails = system.write(engine, "action_fails", 2, **system.waits_shortly)
        await until(lambda: fails.count == 1)
        assert "retry_for = 0.1 seconds" in fails.failures[0][0]
        await until(lambda: not made.alive)
        assert waits.count == 0
    finally:
        system.server.resume()
    await until(lambda: waits.count == 1)
    await until(lambda: made.alive)
    assert first.failures == waits.failures == []
    assert {0, 1} <= {n for _, n in await system.written()}


@pytest.mark.asyncio
async def test_a_bad_row_stops_no_other_row(engine: FakeEngine, system: System) -> None:
    made = system.run(engine, pool_size=1)
    await until(lambda: made.alive)
    report = FakeReport()
    act = engine.action(system.action, report=report, **system.params())
    for n in range(60):
        act.run(system.bad_row if n == 30 else {"c": "c0", "n": n}, published())
    await until(lambda: report.count == 60)
    ((reason, row),) = report.failures
    assert system.bad_reason in reason and row == system.bad_row
    assert {n for _, n in await system.written()} == set(range(60)) - {30}
    assert made.status.buffer.dead_letters == 1


@pytest.mark.asyncio
async def test_rows_wait_for_a_password_that_was_changed(engine: FakeEngine, system: System) -> None:
    made = system.run(engine)
    first = system.write(engine, "action_first", 0)
    await until(lambda: first.count == 1)
    password = system.server.password
    system.set_password(system.new_password)
    try:
        waits = system.write(engine, "action_waits", 1)
        await until(lambda: system.login_refused in f"{made.status.reason} {made.status.buffer.last_error}")
        assert waits.count == 0 and system.new_password not in made.status.reason
    finally:
        system.set_password(password)
    await until(lambda: waits.count == 1)
    assert first.failures == waits.failures == []
    assert {0, 1} == {n for _, n in await system.written()}


@pytest.mark.asyncio
async def test_rows_wait_while_a_certificate_has_expired(
    engine: FakeEngine, system: System, tmp_path: Path
) -> None:  # fmt: skip
    authority = Certificates(tmp_path)
    tls = await system.certify(*authority.issue("localhost"))
    try:
        known = {"filename": "ca.pem", "file": Path(authority.ca).read_text()}
        made = system.run(engine, verify=True, cacertfile=known, server_name_indication="localhost", **tls)
        first = system.write(engine, "action_first", 0)
        await until(lambda: first.count == 1)
        await system.certify(*authority.issue("localhost", expired=True))
        waits = system.write(engine, "action_waits", 1)
        await until(lambda: "expired" in f"{made.status.reason} {made.status.buffer.last_error}")
        assert waits.count == 0
        await system.certify(*authority.issue("localhost"))
        await until(lambda: waits.count == 1)
        assert first.failures == waits.failures == []
    finally:
        await system.uncertify()
    assert {0, 1} <= {n for _, n in await system.written()}


@pytest.mark.asyncio
async def test_nothing_is_lost_while_the_disk_of_the_node_is_full(system: System, tmp_path: Path) -> None:
    """Rows that the buffer has accepted are written, and do not come back after a restart, once there is room again."""
    settings: dict[str, Any] = {"durability": {"level": "disk"}, "node": {"data_dir": str(tmp_path / "data")}}
    with small_disk(tmp_path / "data") as disk:
        node = await start_node(**settings)
        node.ignore(lambda record: "store" in record.getMessage())
        engine = FakeEngine(server=node.server)
        try:
            made = system.run(engine)
            report = FakeReport()
            act = engine.action(system.action, report=report, **system.params())
            act.run({"c": "c0", "n": 0}, published())
            await until(lambda: report.count == 1)
            fill(disk)
            rows = 1
            while not node.server.tables.in_trouble:
                act.run({"c": "c0", "n": rows}, published(payload=b"x" * 1000))
                rows += 1
                await asyncio.sleep(0.001)
            (disk / "ballast").unlink()
            await until(lambda: report.count == rows)
            assert report.failures == []
            await until(lambda: not node.server.tables.in_trouble)
            assert await node.server.tables.stored()
            assert made.status.buffer.dead_letters == 0
        finally:
            await engine.close()
            await node.stop()
        again = Server(make_settings(**settings))
        await again.start()
        try:
            assert len(again.tables.open(TABLE, BufferedRow)) == 0
        finally:
            await again.stop()
    assert {n for _, n in await system.written()} == set(range(rows))


def is_without(test: pytest.Function) -> bool:
    """Return whether the system of a test's module is without this case."""
    case = OPTIONAL.get(test.function.__name__)
    systems = [each for each in vars(test.module).values() if isinstance(each, type) and issubclass(each, System)]
    return case is not None and any(case in each.without for each in systems)


def killed_and_restarted(server: Any, row: int) -> None:
    """Killed for 500 rows, cut off, and restarted."""
    if row == 1000:
        server.kill()
    if row == 1500:
        server.start()
    if row == 2000:
        server.disconnect()
    if row == 2500:
        server.restart()
