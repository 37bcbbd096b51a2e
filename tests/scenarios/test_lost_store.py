"""A store that lost something: real files that are removed, emptied, cut or damaged, and the installed commands."""

import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.stored.users import StoredUser
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.persistence.log import batch, records
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from tests.support.api import APP_ID, SECRET, ApiClient, Reply
from tests.support.node import NodeProcess, free_port
from tests.support.patience import patience
from tests.support.peer import Address, Peer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CONFIG = """
[node]
data_dir = "{directory}"

[[listeners]]
name = "default"
type = "tcp"
bind = "127.0.0.1:{port}"
session_expiry_interval = 4_294_967_295

[[management.apps]]
id = "{app}"
secret = "{secret}"

[access]
hash_cost = 10
"""
PASSWORDS = {"alice": "first", "bob": "second"}
ANY = {"alice", "somebody"}
"""Alice and whoever else is in what is left."""
FILLER = 60
"""Retained messages of 10,000 bytes."""


class Site:
    """A node of its own process on ``directory``, started and killed as the test says."""

    def __init__(self, home: Path, data: Path, extra: str = "") -> None:
        self.data = data
        self.port = free_port()
        self.config = home / "taipan.toml"
        app = {"app": APP_ID, "secret": SECRET}
        self.config.write_text(CONFIG.format(directory=data, port=self.port, **app) + extra)
        self.node: NodeProcess | None = None
        self.said = b""
        self._reading: asyncio.Task[None] | None = None
        self._peers: list[Peer] = []

    async def start(self) -> "Site":
        self.node = NodeProcess(self.config)
        self.node.command = (str(Path(sys.executable).with_name("taipan")),)
        await self.node.start()
        self.said = b""
        self._reading = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        assert self.node is not None and self.node.process.stderr is not None
        while line := await self.node.process.stderr.readline():
            self.said += line

    async def kill(self) -> None:
        await self._end(True)

    async def stop(self) -> None:
        await self._end(False)

    async def _end(self, kill: bool) -> None:
        for peer in self._peers:
            await peer.close()
        self._peers.clear()
        if self.node is None:
            return
        process = self.node.process
        if kill:
            process.kill()
        else:
            process.terminate()
        async with asyncio.timeout(patience(40)):
            status = await process.wait()
        assert self._reading is not None
        await self._reading
        process._transport.close()  # type: ignore[attr-defined]
        self.node = None
        assert kill or status == 0, self.said

    def api(self, app: str = APP_ID, secret: str = SECRET) -> ApiClient:
        assert self.node is not None
        (url,) = (each.removeprefix("management=") for each in self.node.ready.split() if "management=" in each)
        return ApiClient(url, app=(app, secret))

    async def get(self, path: str) -> Any:
        api = self.api()
        try:
            return (await api.get(path)).data
        finally:
            await api.close()

    async def post(self, path: str, body: Any) -> Reply:
        api = self.api()
        try:
            return await api.post(path, body)
        finally:
            await api.close()

    async def alarms(self) -> dict[str, str]:
        (node,) = await self.get("/alarms/activated")
        return {each["name"]: each["message"] for each in node["alarms"]}

    async def ctl(self, *words: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("taipan-ctl")), "--data-dir", str(self.data), *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode()

    async def connects(self, username: str, version: int = 5) -> tuple[int, str]:
        """The Reason Code of its CONNACK, and the Reason String."""
        peer = Peer(Address("127.0.0.1", self.port), version)
        self._peers.append(peer)
        password = PASSWORDS.get(username, "x").encode()
        connack = await peer.connect(f"c-{username}", username=username, password=password, expect=None)
        await peer.close()
        return connack.reason_code, connack.properties.get(c.REASON_STRING, "")

    async def publisher(self, username: str) -> Peer:
        peer = Peer(Address("127.0.0.1", self.port))
        self._peers.append(peer)
        await peer.connect(f"p-{username}", username=username, password=PASSWORDS[username].encode())
        return peer


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of a node that was killed: ``alice`` and the filler are in the database, ``bob`` and a ban in the
    write-ahead log alone. ``old.db`` is a copy of the database from before that."""
    home = tmp_path_factory.mktemp("lost")

    async def make() -> None:
        site = await Site(home, home / "data").start()
        try:
            await add_user(site, "alice")
            publisher = await site.publisher("alice")
            for number in range(FILLER):
                await publisher.publish(f"filler/{number}", bytes([number]) * 10_000, 1, True)
            await site.stop()
            shutil.copy(home / "data" / "taipan.db", home / "old.db")
            await site.start()
            await (await site.publisher("alice")).publish("late", b"x", 1, True)
            await add_user(site, "bob")
            ban = {"who": "mallory", "as": "username", "reason": "", "by": "test", "at": 1, "until": 4_000_000_000}
            assert (await site.post("/banned", ban)).status == 200
        finally:
            await site.kill()

    asyncio.run(make())
    assert (home / "data" / "taipan.db-wal").stat().st_size > 0
    return home


async def add_user(site: Site, username: str) -> None:
    reply = await site.post("/auth_username", {"username": username, "password": PASSWORDS[username]})
    assert reply.status == 200, reply.text


@pytest.fixture
def data(killed: Path, tmp_path: Path) -> Path:
    copied(killed / "data", tmp_path / "data")
    return tmp_path / "data"


def copied(data: Path, to: Path) -> None:
    shutil.copytree(data, to, ignore=shutil.ignore_patterns("*.sock"))


def db(data: Path) -> Path:
    return data / "taipan.db"


def wal(data: Path) -> Path:
    return data / "taipan.db-wal"


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def without_both(data: Path) -> None:
    db(data).unlink()
    wal(data).unlink()


async def operators_only(site: Site) -> None:
    """Nobody gets in by MQTT, whoever it is; the API of the configured application and taipan-ctl answer."""
    for username in ("alice", "bob", "mallory", "nobody"):
        code, why = await site.connects(username)
        assert code == rc.SERVER_UNAVAILABLE and "taipan-ctl data accept-loss" in why, (username, code, why)
        assert (await site.connects(username, 4))[0] == 3
    alarms = await site.alarms()
    assert "access_rows_lost" in alarms, alarms
    assert b"access_rows_lost" in site.said and b"setting=data.access_lost" in site.said
    status, out = await site.ctl("data", "loss")
    assert status == 0 and "Access rows lost:" in out and "Accepted: false" in out


async def accepted(site: Site) -> None:
    assert await site.ctl("data", "accept-loss") == (0, "ok\n")
    assert "access_rows_lost" not in await site.alarms()
    assert (await site.get("/data/loss"))["accepted"] is True


@pytest.mark.parametrize(
    ("harm", "batches", "left"),
    [
        pytest.param(lambda data: wal(data).unlink(), True, {"alice"}, id="wal removed"),
        pytest.param(lambda data: wal(data).write_bytes(b""), True, {"alice"}, id="wal emptied"),
        pytest.param(lambda data: cut(wal(data)), True, ANY, id="wal cut"),
        pytest.param(without_both, True, set(), id="all removed but the check file"),
        pytest.param(lambda data: db(data).unlink(), False, {"bob"}, id="database removed"),
        pytest.param(lambda data: db(data).write_bytes(b""), False, {"bob"}, id="database emptied"),
    ],
)
@pytest.mark.asyncio
async def test_nobody_but_operators_until_the_loss_is_accepted(
    tmp_path: Path, data: Path, harm: Callable[[Path], object], batches: bool, left: set[str]
) -> None:
    harm(data)
    site = await Site(tmp_path, data).start()
    try:
        await operators_only(site)
        assert ("store_batches_lost" in await site.alarms()) == batches
        assert (b"store_batches_lost" in site.said) == batches
        # It is not forgotten: not by kill -9, nor by a graceful stop, nor by what operators do meanwhile.
        if not left:
            await add_user(site, "bob")
            left = {"bob"}
        await (site.kill() if batches else site.stop())
        await site.start()
        await operators_only(site)
        assert "store_batches_lost" not in await site.alarms()
        await accepted(site)
        for username in ("alice", "bob") if left != ANY else ():
            code, _ = await site.connects(username)
            assert (code == 0) == (username in left), (username, code)
        assert (await site.connects("alice"))[0] == 0 or "alice" not in left
        # For good.
        await site.kill()
        await site.start()
        assert await site.alarms() == {}
        assert (await site.connects(min(left)))[0] == 0
        await site.stop()
    finally:
        await site.kill()


@pytest.mark.asyncio
async def test_nothing_is_said_after_kill_9_or_a_graceful_stop(tmp_path: Path, data: Path) -> None:
    site = await Site(tmp_path, data).start()
    try:
        for number in range(3):
            assert await site.alarms() == {}
            assert await site.ctl("data", "loss") == (0, "Nothing is lost.\n")
            assert [(await site.connects(name))[0] for name in PASSWORDS] == [0, 0]
            assert (await site.connects("mallory"))[0] == rc.BANNED
            for each in range(5):
                body = {"username": f"user-{number}-{each}", "password": "p"}
                assert (await site.post("/auth_username", body)).status == 200
            await (site.stop() if number % 2 else site.kill())
            assert b"lost" not in site.said
            await site.start()
    finally:
        await site.kill()


@pytest.mark.asyncio
async def test_a_store_that_lies_in_its_write_ahead_log_alone_is_whole_without_its_database(tmp_path: Path) -> None:
    site = await Site(tmp_path, tmp_path / "data").start()
    try:
        await add_user(site, "alice")
        await (await site.publisher("alice")).publish("kept", b"x", 1, True)
        await site.kill()
        db(site.data).write_bytes(b"")
        await site.start()
        assert set(await site.alarms()) == {"store_damaged"}
        assert (await site.connects("alice"))[0] == 0
        assert (await site.connects("stranger"))[0] == rc.BAD_USER_NAME_OR_PASSWORD
        assert (await site.get("/retained/kept"))["topic"] == "kept"
    finally:
        await site.kill()


def damage(path: Path, text: bytes) -> None:
    """A flipped bit in everything that looks like this."""
    content = path.read_bytes()
    assert text in content
    path.write_bytes(content.replace(text, text[:-1] + bytes([text[-1] ^ 1])))


@pytest.mark.asyncio
async def test_damage_to_messages_lets_clients_in_and_damage_to_users_does_not(tmp_path: Path, data: Path) -> None:
    pristine = tmp_path / "pristine"
    copied(data, pristine)
    damage(db(data), bytes([30]) * 2000)
    site = await Site(tmp_path, data).start()
    try:
        alarms = await site.alarms()
        assert set(alarms) == {"store_damaged"}, alarms
        assert (await site.connects("bob"))[0] == 0 and (await site.connects("mallory"))[0] == rc.BANNED
        await site.kill()
        shutil.rmtree(data)
        copied(pristine, data)
        damage(db(data), b"username:alice")
        await site.start()
        await operators_only(site)
        assert "users" in (await site.alarms())["access_rows_lost"]
    finally:
        await site.kill()


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda check: check.unlink(), id="removed"),
        pytest.param(lambda check: check.write_bytes(b""), id="emptied"),
        pytest.param(cut, id="cut"),
        pytest.param(lambda check: check.write_bytes(bytes(check.stat().st_size)), id="zeros"),
    ],
)
@pytest.mark.asyncio
async def test_a_check_file_that_is_gone_or_damaged_is_asked_about(
    tmp_path: Path, data: Path, harm: Callable[[Path], object]
) -> None:
    """Whoever takes it away may have taken away more, and nobody can tell."""
    harm(data / "taipan.check")
    site = await Site(tmp_path, data).start()
    try:
        await operators_only(site)
        assert "taipan.check" in (await site.alarms())["access_rows_lost"]
        await site.kill()
        await site.start()
        await operators_only(site)
        await accepted(site)
        assert (await site.connects("alice"))[0] == 0
        await site.kill()
        assert (data / "taipan.check").stat().st_size == 16_384
        await site.start()
        assert await site.alarms() == {}
        assert (await site.connects("bob"))[0] == 0
    finally:
        await site.kill()


@pytest.mark.asyncio
async def test_an_old_copy_of_the_database_is_taken_when_an_operator_says_so(
    tmp_path: Path, data: Path, killed: Path
) -> None:
    wal(data).unlink()
    shutil.copy(killed / "old.db", db(data))
    site = await Site(tmp_path, data).start()
    try:
        await operators_only(site)
        await accepted(site)
        assert (await site.connects("alice"))[0] == 0
    finally:
        await site.kill()


@pytest.mark.asyncio
async def test_a_setting_lets_the_node_go_on_with_what_is_left(tmp_path: Path, data: Path) -> None:
    wal(data).unlink()
    site = await Site(tmp_path, data, '\n[data]\naccess_lost = "accept"\n').start()
    try:
        assert set(await site.alarms()) == {"access_rows_lost", "store_batches_lost"}
        assert (await site.connects("alice"))[0] == 0
        await site.kill()
        await site.start()
        assert await site.alarms() == {}
        await site.kill()
        (data / "taipan.check").unlink()
        await site.start()
        assert set(await site.alarms()) == {"access_rows_lost"}
        await site.kill()
        await site.start()
        assert await site.alarms() == {}
    finally:
        await site.kill()


@pytest.mark.asyncio
async def test_a_stored_application_that_may_be_an_old_one_is_refused(tmp_path: Path) -> None:
    site = await Site(tmp_path, tmp_path / "data").start()
    try:
        body = {"app_id": "stored", "name": "x", "secret": "s" * 20}
        assert (await site.post("/apps", body)).status == 200
        old = db(site.data)
        await site.stop()
        shutil.copy(old, tmp_path / "old.db")
        await site.start()
        api = site.api()
        await api.delete("/apps/stored")
        await api.close()
        await site.stop()
        shutil.copy(tmp_path / "old.db", old)
        await site.start()
        assert "apps" in (await site.alarms())["access_rows_lost"]
        api = site.api("stored", "s" * 20)
        reply = await api.get("/brokers")
        await api.close()
        assert reply.code == 103 and "data.access_lost" in reply.text
        # Who may connect does not depend on it.
        assert (await site.connects("nobody"))[0] == 0
        assert (await site.post("/data/loss/accept", {})).data["accepted"] is True
        api = site.api("stored", "s" * 20)
        assert (await api.get("/brokers")).status == 200
        await api.close()
    finally:
        await site.kill()


@pytest.mark.asyncio
async def test_a_store_from_before_the_check_file_is_taken_as_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    user = StoredUser("username", "alice", str(ScryptHash.create(b"first", 1024)))
    row = records.encode(records.RowStored("users", "username:alice", msgspec.msgpack.encode(user)))
    log = SqliteLog(db(data))
    log.open()
    log.append(1, batch.encode([row]))
    log.checkpoint_and_close()
    site = await Site(tmp_path, data).start()
    try:
        assert await site.alarms() == {}
        assert (await site.connects("alice"))[0] == 0
        assert (await site.connects("stranger"))[0] == rc.BAD_USER_NAME_OR_PASSWORD
        await site.kill()
        (data / "taipan.check").unlink()
        await site.start()
        await operators_only(site)
    finally:
        await site.kill()


@pytest.mark.asyncio
async def test_at_level_memory_there_is_no_check_file(tmp_path: Path) -> None:
    site = await Site(tmp_path, tmp_path / "data", '\n[durability]\nlevel = "memory"\n').start()
    try:
        await add_user(site, "alice")
        await site.kill()
        assert {each.name for each in (tmp_path / "data").glob("taipan*")} <= {"taipan.history"}
        await site.start()
        assert await site.alarms() == {}
        assert (await site.connects("stranger"))[0] == 0
        assert await site.ctl("data", "loss") == (0, "Nothing is lost.\n")
    finally:
        await site.kill()
