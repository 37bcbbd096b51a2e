"""``taipan --workers N``: one command, one configuration and one data directory; several processes that are one
broker. Real processes and sockets."""

import asyncio
import os
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.node import free_port
from tests.support.patience import patience
from tests.support.peer import Peer
from tests.support.waiting import until
from tests.support.worker_processes import NAME, WorkerProcesses, as_json, runs

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.timeout(180)]

SECOND = "taipan-2@127.0.0.1"


async def ctl(broker: WorkerProcesses, *words: str) -> str:
    """What ``taipan-ctl`` prints about the broker's data directory."""
    command = await asyncio.create_subprocess_exec(
        str(Path(broker.command[0]).with_name("taipan-ctl")), "--data-dir", str(broker.data), *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(command.communicate(), patience(40))
    assert command.returncode == 0, out.decode()
    return out.decode()


async def test_two_workers_are_one_broker(tmp_path: Path) -> None:
    """Clients of either worker, versions and transports exchange messages; API and taipan-ctl answer for both; a reload
    reaches both; at the end nothing is left running, and each log line names its worker."""
    async with WorkerProcesses(2, tmp_path, '[log]\nformat = "json"') as broker:
        assert broker.ready.endswith(" workers=2") and f"tcp:127.0.0.1:{broker.tcp.port}" in broker.ready
        await broker.until_all_run(2)
        first, second = await broker.client_at("a", NAME, 4), await broker.client_at("b", SECOND)
        await first.subscribe("from/b", qos=2)
        await second.subscribe("from/a", qos=2)
        for qos in (0, 1, 2):
            await second.publish("from/b", b"to a", qos)
            await first.expect_publish("from/b", b"to a", qos)
            await first.publish("from/a", b"to b", qos)
            await second.expect_publish("from/a", b"to b", qos)
        web = Peer(broker.ws, 4)
        await web.connect("w")
        await web.publish("from/b", b"by ws", 1)
        await first.expect_publish("from/b", b"by ws", 1)
        clients = (await broker.api.get("/clients")).data
        assert {each["clientid"]: each["node"] for each in clients}.items() >= {"a": NAME, "b": SECOND}.items()
        assert "a" in (listed := await ctl(broker, "clients", "list")) and "b" in listed
        await web.close()
        for node in (NAME, SECOND):
            page = (await broker.api.get("/emqx_prometheus", type="prometheus", node=node)).text
            assert "\nemqx_messages_qos2_received 1\n" in page, page
        # The limits of one machine are divided.
        memory = (await broker.api.get("/configuration", key="limits.memory", node=SECOND)).data
        assert isinstance(memory[0]["value"], int)
        with (tmp_path / "taipan.toml").open("a") as file:
            file.write('[access]\n[[access.rules]]\nallow = false\ntopics = ["secret"]\n')
        broker.process.send_signal(signal.SIGHUP)
        await until(lambda: sum(line.get("event") == "reloaded" for line in as_json(broker.log)) == 2)
        for peer in (first, second):
            assert await peer.publish("open", b"x", 1) in (0, 0x10)
        assert await second.publish("secret", b"x", 1, expect=None) == 0x87
        children = broker.children()
        assert len(children) == 3 and broker.nats() in children
    assert not any(map(runs, children))
    lines = as_json(broker.log)
    assert {line.get("worker") for line in lines if line.get("event") == "reloaded"} == {1, 2}
    assert {line["event"] for line in lines if "worker" not in line} >= {"stopping", "stopped"}


class Promises:
    """Two durable subscribers, one at each worker, and a publisher at each: one of QoS 1, one of QoS 2. Whatever was
    acknowledged is owed to both subscribers, in order, and at QoS 2 once."""

    SUBSCRIBERS = (("s1", NAME, 5), ("s2", SECOND, 4))
    PUBLISHERS = (("p1", NAME, 2), ("p2", SECOND, 1))

    def __init__(self, broker: WorkerProcesses) -> None:
        self.broker = broker
        self.acknowledged: dict[str, list[bytes]] = {name: [] for name, *_ in self.PUBLISHERS}
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """The subscribers go; the publishers publish until their connections end."""
        for client_id, node, version in self.SUBSCRIBERS:
            peer = await self.broker.client_at(client_id, node, version)
            await peer.subscribe("t/#", qos=2)
            await peer.drop()
        for name, node, qos in self.PUBLISHERS:
            peer = await self.broker.client_at(name, node)
            self.tasks.append(asyncio.create_task(self._publish(name, peer, qos)))
        await until(lambda: all(len(each) >= 20 for each in self.acknowledged.values()))

    async def _publish(self, name: str, peer: Peer, qos: int) -> None:
        for number in range(1000):
            payload = f"{number}".encode()
            await peer.publish(f"t/{name}", payload, qos)
            self.acknowledged[name].append(payload)

    async def end(self) -> None:
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def check(self) -> None:
        for client_id, _, version in self.SUBSCRIBERS:
            peer = await self.broker.client(client_id, version)
            received: dict[str, list[bytes]] = {name: [] for name in self.acknowledged}
            control = await self.broker.client(f"control-{client_id}")
            for name in received:
                await control.publish(f"t/{name}", b"end", 1)
            marks = set(received)
            while marks:
                packet = await peer.expect_publish(timeout=patience(40))
                name = packet.topic.removeprefix("t/")
                if packet.payload == b"end":
                    marks.discard(name)
                else:
                    received[name].append(packet.payload)
            for name, _, qos in self.PUBLISHERS:
                got, owed = received[name], self.acknowledged[name]
                if qos == 1:
                    got = list(dict.fromkeys(got))
                # One more message can have been accepted without its acknowledgement reaching the publisher.
                assert got[: len(owed)] == owed and len(got) <= len(owed) + 1, (name, len(got), len(owed))
            await peer.disconnect()


@pytest.mark.parametrize("killed", ["worker 1", "worker 2", "nats-server"])
async def test_a_process_is_killed(killed: str, tmp_path: Path) -> None:
    """It starts again by itself, and nothing is lost, although a publisher or a subscriber was connected to it."""
    async with WorkerProcesses(2, tmp_path) as broker:
        await broker.until_all_run(2)
        promises = Promises(broker)
        await promises.begin()
        pid = {"worker 1": broker.pid(1), "worker 2": broker.pid(2), "nats-server": broker.nats()}[killed]
        os.kill(pid, signal.SIGKILL)
        await promises.end()
        await until(lambda: len(broker.children()) == 3 and pid not in broker.children())
        await broker.until_all_run(2)
        await promises.check()


async def test_the_supervisor_is_killed(tmp_path: Path) -> None:
    """The system ends the workers with it. The next start has everything that was acknowledged."""
    async with WorkerProcesses(2, tmp_path) as broker:
        await broker.until_all_run(2)
        await (await broker.client("r")).publish("kept", b"retained", 1, retain=True)
        promises = Promises(broker)
        await promises.begin()
        children = broker.children()
        os.kill(broker.process.pid, signal.SIGKILL)
        await promises.end()
        assert await broker.end(signal.SIGKILL) == -signal.SIGKILL
        assert len(children) == 3 and not any(map(runs, children))
        await broker.start()
        await broker.until_all_run(2)
        await promises.check()
        peer = await broker.client("r")
        await peer.subscribe("kept", qos=1)
        await peer.expect_publish("kept", b"retained", 1, retain=True)


async def test_a_second_supervisor_is_refused(tmp_path: Path) -> None:
    """So is a node without workers; the first ones go on."""
    async with WorkerProcesses(2, tmp_path) as broker:
        await broker.until_all_run(2)
        for workers in (2, 1):  # a single one finds the data of worker 2, which has to be evacuated
            command = [*broker.command, "--config", str(broker.config), "--workers", str(workers)]
            environment = {**broker.env, "TAIPAN__LISTENERS__0__BIND": f"127.0.0.1:{free_port()}"}
            second = await asyncio.create_subprocess_exec(
                *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            out, _ = await asyncio.wait_for(second.communicate(), patience(40))
            expected = f"node.data_dir {broker.data}: in use by process {broker.process.pid}; each node needs its own"
            assert second.returncode == 1 and f"taipan: cannot start: {expected}" in out.decode(), out.decode()
            assert "Traceback" not in out.decode()
        assert (await broker.client("c")).connack.reason_code == 0


async def test_a_node_becomes_worker_1_and_a_node_again(tmp_path: Path) -> None:
    """One worker, three, one, two: sessions with their queues, retained messages and users stay; data of workers that
    are no longer wanted goes."""
    broker = WorkerProcesses(1, tmp_path)

    async def leaves(client_id: str, node: str) -> None:
        peer = await (broker.client_at(client_id, node) if node != NAME else broker.client(client_id))
        await peer.subscribe("t/#", qos=2)
        await peer.drop()

    async def publish(what: bytes) -> None:
        publisher = await broker.client("publisher")
        await publisher.publish("t/x", what, 2)
        await publisher.publish("kept", what, 1, retain=True)
        await publisher.drop()

    async def check(client_id: str, *payloads: bytes) -> None:
        peer = await broker.client(client_id)
        for payload in payloads:
            await peer.expect_publish("t/x", payload, 2)
        await peer.subscribe("kept")
        await peer.expect_publish("kept", payloads[-1], 0, retain=True)
        await peer.unsubscribe("kept")
        await peer.nothing()
        await peer.drop()

    async with broker:
        assert "workers" not in broker.ready and broker.children() == []
        assert (await broker.api.post("/auth_username", {"username": "ann", "password": "secret"})).code == 0
        await leaves("s1", NAME)
        await publish(b"one")

        broker.workers = 3
        await broker.restart()
        await broker.until_all_run(3)
        await leaves("s2", SECOND)
        await leaves("s3", "taipan-3@127.0.0.1")
        await publish(b"two")
        await check("s1", b"one", b"two")
        assert (await broker.api.post("/auth_username", {"username": "bob", "password": "secret"})).code == 0

        broker.workers = 1
        await broker.restart()
        await until(lambda: not list(broker.data.glob("worker-[0-9]*")), 60)
        await broker.until_all_run(1)
        await publish(b"three")
        await broker.restart()
        assert broker.children() == [] and not (broker.data / "worker-nats").exists()
        await check("s2", b"two", b"three")
        await publish(b"four")

        broker.workers = 2
        await broker.restart()
        await broker.until_all_run(2)
        await check("s1", b"three", b"four")
        await check("s3", b"two", b"three", b"four")
        assert {each["username"] for each in (await broker.api.get("/auth_username")).data} == {"ann", "bob"}


async def test_what_systemd_is_told(tmp_path: Path) -> None:
    """The supervisor is the process of the unit: it is ready when all workers are, and no worker tells systemd."""
    broker = WorkerProcesses(2, tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        broker.env["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        told: list[tuple[bytes, int]] = []

        def read() -> None:
            with suppress(BlockingIOError):
                while True:
                    data, ancillary, _, _ = systemd.recvmsg(4096, socket.CMSG_SPACE(12))
                    told.append((data, struct.unpack("3i", ancillary[0][2])[0]))

        async with broker:
            await broker.until_all_run(2)
            read()
            supervisor = broker.process.pid
            broker.process.send_signal(signal.SIGHUP)
            await until(lambda: broker.log.count(b" reloaded ") == 2)
        read()
    assert told == [(b"READY=1", supervisor), (b"STOPPING=1", supervisor)]


async def test_a_worker_that_hangs_is_killed(tmp_path: Path) -> None:
    """And starts again. The limit is that of systemd's watchdog."""
    broker = WorkerProcesses(2, tmp_path)
    broker.env["WATCHDOG_USEC"] = str(int(patience(5) * 1e6))
    async with broker:
        await broker.until_all_run(2)
        pid = broker.pid(2)
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: not runs(pid), 60)
        await broker.until_all_run(2)
        assert "worker_hangs name=taipan-2@127.0.0.1" in broker.log.decode()


async def test_a_worker_that_cannot_start(tmp_path: Path) -> None:
    """Then the command ends with its reason, and nothing is left running."""
    broker = WorkerProcesses(2, tmp_path, '[access.jwt]\nsecret = "x"\nfile = "/"\n')
    with pytest.raises(AssertionError, match=r"access\.jwt"):
        await broker.start()
    taken = free_port()
    (tmp_path / "other").mkdir()
    other = WorkerProcesses(2, tmp_path / "other")
    holder = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", taken)
    other.env["TAIPAN__LISTENERS__0__BIND"] = f"127.0.0.1:{taken}"
    try:
        with pytest.raises(AssertionError, match=r"(?s)taken|in use.*cannot start: .* ended with status 1"):
            await other.start()
    finally:
        holder.close()
    assert not any(b"nats-server" in line and str(tmp_path).encode() in line for line in _command_lines())


def _command_lines() -> list[bytes]:
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(each.read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
