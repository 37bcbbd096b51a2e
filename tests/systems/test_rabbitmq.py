"""Messages to RabbitMQ, with a real server."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import aiormq
import pytest
import pytest_asyncio
from aiormq.abc import AbstractChannel

from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.rabbitmq import action, resource
from tests.ruleengine.sinks.contract import *  # noqa: F403
from tests.ruleengine.sinks.other_sides import OtherSide
from tests.support.certificates import Certificates
from tests.support.cutting_proxy import CuttingProxy
from tests.support.fake_engine import FakeEngine, FakeReport, published
from tests.support.waiting import until
from tests.systems.contract import *  # noqa: F403
from tests.systems.contract import System
from tests.systems.servers.rabbitmq import RabbitMq

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def process(secured: Certificates) -> Iterator[RabbitMq]:
    made = RabbitMq(secured)
    made.start()
    yield made
    made.close()


class Reader:
    """Reads queues, over a connection of its own."""

    def __init__(self, channel: AbstractChannel) -> None:
        self._channel = channel
        self.name = f"q{next(_numbers)}"
        self.taken: list[Any] = []

    @classmethod
    async def of(cls, connection: Any, exchange: str = "", key: str = "#", kind: str = "topic", **queue: Any) -> Reader:
        """A queue of its own, bound to an exchange, which is created."""
        made = cls(await connection.channel())
        await made._channel.queue_declare(made.name, **queue)
        if exchange:
            await made._channel.exchange_declare(exchange, exchange_type=kind)
            await made._channel.queue_bind(made.name, exchange, key)
        return made

    async def read(self) -> None:
        async def take(message: Any) -> None:
            self.taken.append(message)

        await self._channel.basic_consume(self.name, take, no_ack=True)

    @property
    def payloads(self) -> list[Any]:
        return [json.loads(each.body) for each in self.taken]


@pytest_asyncio.fixture
async def connection(process: RabbitMq) -> AsyncIterator[Any]:
    made = await connect(process)
    yield made
    await made.close()


async def connect(server: RabbitMq) -> Any:
    return await aiormq.connect(f"amqp://{server.user}:{server.password}@{server.address}/")


def exchange() -> str:
    return f"x{next(_numbers)}"


class RabbitSide(OtherSide):
    """The server is away when the proxy is: it takes seconds to start."""

    action: ClassVar = "data_to_rabbit"
    params: ClassVar = {"exchange": "taken", "routing_key": "a.${client}", "payload_tmpl": "${n}"}
    address = "server"
    proxy: CuttingProxy
    reader: Reader | None = None

    def __init__(self) -> None:
        self.port = self.proxy.port

    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {
            **super().config(host), "username": RabbitMq.user, "password": RabbitMq.password, "auto_reconnect": "10ms",
        }  # fmt: skip

    async def start(self) -> None:
        await self.proxy.start()

    async def stop(self) -> None:
        await self.proxy.stop()

    async def proxies(self) -> list[CuttingProxy]:
        return [self.proxy]

    def taken(self) -> list[int]:
        return [] if self.reader is None else self.reader.payloads


@pytest.fixture(scope="module")
def sides(process: RabbitMq) -> dict[str, type[OtherSide]]:
    RabbitSide.proxy = CuttingProxy(process.port)
    return {"bridge_rabbit": RabbitSide}


@pytest_asyncio.fixture
async def kind(process: RabbitMq, connection: Any) -> AsyncIterator[str]:
    RabbitSide.reader = await Reader.of(connection, "taken", exclusive=True)
    await RabbitSide.reader.read()
    yield "bridge_rabbit"


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    yield made
    await made.close()


def run(engine: FakeEngine, there: RabbitMq, **config: Any) -> Any:
    login = {"server": there.address, "username": there.user, "password": there.password}
    return engine.run(resource.TYPE, **(login | {"pool_size": 2, "auto_reconnect": "10ms"} | config))


def write(engine: FakeEngine, rows: list[dict[str, Any]], **params: Any) -> FakeReport:
    report = FakeReport()
    act = engine.action(action.TYPE, f"action_{next(_numbers)}", report, **{"routing_key": "a.b", **params})
    for each in rows:
        act.run(each, published(client_id=str(each.get("c", "c1"))))
    return report


class RabbitSystem(System):
    resource, action = resource.TYPE, action.TYPE
    gives_up_soon: ClassVar = {"timeout": "500ms"}
    waits_shortly: ClassVar = {"retry_for": "100ms"}
    without: ClassVar = {"bad row": "a queue takes any bytes: test_a_refused_message_concerns_no_other"}
    rows = 1500
    login_refused = "ACCESS_REFUSED"
    server: RabbitMq

    def __init__(self, server: RabbitMq) -> None:
        super().__init__(server)
        self.exchange, self.queue = exchange(), f"q{next(_numbers)}"

    def config(self) -> dict[str, Any]:
        return {
            "server": self.server.address, "username": self.server.user, "password": self.server.password,
            "pool_size": 4, "auto_reconnect": "10ms",
        }  # fmt: skip

    def params(self) -> dict[str, Any]:
        return {"exchange": self.exchange, "routing_key": "${c}", "durable": True}

    def set_password(self, password: str) -> None:
        self.server.ctl("change_password", self.server.user, password)
        self.server.ctl("close_all_connections", "the password has changed")

    def harm(self, row: int) -> None:
        if row == 500:
            self.server.kill()
        if row == 1000:
            self.server.start()

    async def written(self) -> list[tuple[str, int]]:
        connection = await connect(self.server)
        channel = await connection.channel()
        waiting = (await channel.queue_declare(self.queue, passive=True)).message_count
        reader = Reader(channel)
        reader.name = self.queue
        await reader.read()
        await until(lambda: len(reader.taken) >= waiting)
        await connection.close()
        return [(each["c"], each["n"]) for each in reader.payloads]


@pytest_asyncio.fixture
async def system(process: RabbitMq) -> System:
    if not process.runs:
        process.start()
    made = RabbitSystem(process)
    connection = await connect(process)
    channel = await connection.channel()
    await channel.exchange_declare(made.exchange, exchange_type="topic", durable=True)
    await channel.queue_declare(made.queue, durable=True)
    await channel.queue_bind(made.queue, made.exchange, "#")
    await connection.close()
    return made


async def done(report: FakeReport, count: int) -> None:
    await until(lambda: report.count >= count)
    assert report.count == count


@pytest.mark.asyncio
async def test_messages(engine: FakeEngine, process: RabbitMq, connection: Any) -> None:
    """Templates, and whether they are kept on disk."""
    name = exchange()
    reader = await Reader.of(connection, name)
    await reader.read()
    run(engine, process)
    report = write(
        engine, [{"n": n, "device": f"d{n}"} for n in range(3)], exchange=name, routing_key="machines.${device}",
        payload_tmpl='{"number": ${n}}',
    )  # fmt: skip
    await done(report, 3)
    durable = write(engine, [{"n": 4, "text": "é"}], exchange=name, durable=True)
    await done(durable, 1)
    assert report.failures == durable.failures == []
    await until(lambda: len(reader.taken) == 4)
    assert [each.delivery.routing_key for each in reader.taken] == [f"machines.d{n}" for n in range(3)] + ["a.b"]
    assert reader.payloads == [{"number": n} for n in range(3)] + [{"n": 4, "text": "é"}]
    assert [each.header.properties.delivery_mode for each in reader.taken] == [1, 1, 1, 2]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind_of, durable", [("fanout", False), ("direct", True)])
async def test_an_exchange_is_created(
    engine: FakeEngine, process: RabbitMq, connection: Any, kind_of: str, durable: bool
) -> None:
    name = exchange()
    run(engine, process)
    report = write(engine, [{"n": 1}], exchange=name, exchange_type=kind_of, durable=durable)
    await done(report, 1)  # no queue is bound to it
    assert "no queue takes messages with the routing key a.b" in report.failures[0][0]
    channel = await connection.channel()
    await channel.exchange_declare(name, exchange_type=kind_of, durable=durable)  # refuses another one
    await channel.exchange_delete(name)
    again = write(engine, [{"n": 2}], exchange=name, exchange_type=kind_of, durable=durable)
    await done(again, 1)
    assert "no queue takes" in again.failures[0][0]
    await channel.exchange_declare(name, exchange_type=kind_of, durable=durable)


@pytest.mark.asyncio
async def test_one_that_exists_is_used_as_it_is(engine: FakeEngine, process: RabbitMq, connection: Any) -> None:
    """Whatever the action says of its type; the default exchange leads to the queue of this name."""
    name = exchange()
    reader = await Reader.of(connection, name, "a.b", "direct")
    await reader.read()
    run(engine, process)
    await done(write(engine, [{"n": 1}], exchange=name, exchange_type="topic", durable=True), 1)
    await until(lambda: reader.payloads == [{"n": 1}])


@pytest.mark.asyncio
async def test_a_refused_message_concerns_no_other(engine: FakeEngine, process: RabbitMq, connection: Any) -> None:
    """The server closes the channel for a message that is too large; those around it are published in order."""
    name = exchange()
    reader = await Reader.of(connection, name)
    await reader.read()
    made = run(engine, process)
    await until(lambda: made.alive)
    await done(write(engine, [{"n": -1}], exchange=name), 1)
    rows: list[dict[str, Any]] = [{"n": n} for n in range(20)]
    rows[7]["text"] = "x" * process.LARGEST
    report = write(engine, rows, exchange=name)
    await done(report, 20)
    ((reason, row),) = report.failures
    assert "message size" in reason and row == rows[7]
    await until(lambda: len({each["n"] for each in reader.payloads}) == 20)
    found = list(dict.fromkeys(each["n"] for each in reader.payloads))
    assert found == [n for n in range(-1, 20) if n != 7] and made.status.buffer.dead_letters == 1


@pytest.mark.asyncio
async def test_a_full_queue(engine: FakeEngine, process: RabbitMq, connection: Any) -> None:
    """It refuses messages; they are tried again, in order."""
    name = exchange()
    reader = await Reader.of(
        connection, name, arguments={"x-max-length": 5, "x-overflow": "reject-publish"}, exclusive=True
    )
    made = run(engine, process, retry_attempts=1000)
    report = write(engine, [{"n": n} for n in range(20)], exchange=name)
    await until(lambda: "a queue may be full" in made.status.buffer.last_error)
    assert report.count <= 5
    await reader.read()
    await done(report, 20)
    assert report.failures == []
    await until(lambda: len({each["n"] for each in reader.payloads}) == 20)
    last = {each["n"]: at for at, each in enumerate(reader.payloads)}
    assert sorted(last, key=last.__getitem__) == list(range(20))


@pytest.mark.asyncio
async def test_memory_that_is_low_makes_rows_wait(engine: FakeEngine, process: RabbitMq, connection: Any) -> None:
    name = exchange()
    reader = await Reader.of(connection, name)
    made = run(engine, process, timeout="1s")
    await done(write(engine, [{"n": 0}], exchange=name), 1)
    process.ctl("set_vm_memory_high_watermark", "0.00001")
    try:
        report = write(engine, [{"n": 1}], exchange=name)
        await until(lambda: made.buffer.status.retried > 0)
        assert report.count == 0
    finally:
        process.ctl("set_vm_memory_high_watermark", "0.4")
    await done(report, 1)
    assert report.failures == []
    await reader.read()
    await until(lambda: {each["n"] for each in reader.payloads} == {0, 1})


@pytest.mark.asyncio
async def test_credentials(engine: FakeEngine, process: RabbitMq, connection: Any) -> None:
    async def reason(**config: Any) -> str:
        login = {"server": process.address, "username": process.user, "password": process.password}
        trial = engine.make(resource.TYPE, "trial", **{**login, **config})
        try:
            await trial.test()
        except ResourceError as error:
            return str(error)
        finally:
            await trial.close()
        return ""

    assert await reason() == ""
    refused = await reason(password="wr0ng")
    assert "ACCESS_REFUSED" in refused and "wr0ng" not in refused
    assert "ACCESS_REFUSED" in await reason(username="nobody")
    assert "does not open the virtual host a/b %2" in await reason(virtual_host="a/b %2")


@pytest.mark.asyncio
async def test_auto_reconnect_and_heartbeat(engine: FakeEngine, process: RabbitMq) -> None:
    """How long it waits after an attempt that has failed."""
    made = run(engine, process, server="127.0.0.1:1", auto_reconnect="1h")
    await until(lambda: made.status.reason not in ("", "not tried yet"))
    made.sink._port = process.port
    await asyncio.sleep(0.2)  # several checks
    assert not made.alive
    made.sink._not_before = 0.0
    await until(lambda: made.alive)
    await made.close()
    made = run(engine, process, heartbeat="7s")
    await until(lambda: made.alive)
    assert "7" in process.ctl("list_connections", "timeout").split()
    with pytest.raises(ParamError, match="heartbeat"):
        engine.make(resource.TYPE, "trial", server=process.address, heartbeat="10ms")


@pytest.mark.asyncio
async def test_pool_size(engine: FakeEngine, process: RabbitMq, connection: Any) -> None:
    name = exchange()
    await Reader.of(connection, name)
    proxy = await CuttingProxy(process.port).start()
    made = run(engine, process, pool_size=3, server=f"127.0.0.1:{proxy.port}")
    await until(lambda: made.alive)
    await done(write(engine, [{"n": n, "c": f"c{n}"} for n in range(100)], exchange=name), 100)
    assert proxy.connections == 4  # and the one that checks it
    await made.close()
    await proxy.stop()


@pytest.mark.parametrize("row, reason", [
    ({"key": "x" * 256}, "longer than 255 bytes"), ({"key": b"\xff"}, "not UTF-8"), ({"key": "\ud800"}, "not UTF-8"),
])  # fmt: skip
def test_routing_keys_that_amqp_does_not_have(row: dict[str, Any], reason: str) -> None:
    engine = FakeEngine()
    act = engine.action(action.TYPE, exchange="x", routing_key="${key}")
    engine.resources["resource:1"] = engine.make(resource.TYPE, server="127.0.0.1:1")
    with pytest.raises(Exception, match=reason):
        act.run(row, published())
    with pytest.raises(ParamError, match="exchange"):
        engine.action(action.TYPE, exchange="x" * 256, routing_key="k")


@pytest.mark.asyncio
async def test_tls(engine: FakeEngine, tmp_path: Path, secured: Certificates, process: RabbitMq) -> None:
    authority = {"filename": "ca.pem", "file": Path(secured.ca).read_text()}

    async def reason(port: int = process.tls_port, **config: Any) -> str:
        login = {"server": f"127.0.0.1:{port}", "username": process.user, "password": process.password}
        trial = engine.make(resource.TYPE, "trial", **(login | {"ssl": True} | config))
        try:
            await trial.test()
        except ResourceError as error:
            return str(error)
        finally:
            await trial.close()
        return ""

    assert await reason(process.port, timeout="500ms")
    assert await reason(server_name_indication="auto") == ""
    assert "CERTIFICATE_VERIFY_FAILED" in await reason(verify=True)
    assert "match" in await reason(verify=True, cacertfile=authority, server_name_indication="auto")
    assert await reason(verify=True, cacertfile=authority, server_name_indication="rabbit.example") == ""
    mine = secured.issue("client")
    files = {"certfile": mine[0], "keyfile": {"filename": "k", "file": Path(mine[1]).read_text()}}
    assert await reason(**files) == ""
    strange = Certificates(tmp_path).issue("stranger")
    assert await reason(certfile=strange[0], keyfile=strange[1])
    process.certify("late.example", expired=True)
    process.ctl("eval", "ssl:clear_pem_cache().")
    assert "expired" in await reason(verify=True, cacertfile=authority, server_name_indication="late.example")
