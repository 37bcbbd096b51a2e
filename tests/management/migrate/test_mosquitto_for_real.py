"""A Mosquitto with users, rules, retained messages and sessions moves: its clients notice a reconnect and no more."""

import asyncio
import contextlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Suback, Subscribe, TopicFilter
from taipan.management.migrate import mosquitto_db as db
from taipan.management.node import main
from tests.support.absent import absent
from tests.support.mosquitto_db import DbWriter
from tests.support.node import NodeProcess, free_port
from tests.support.patience import patience
from tests.support.peer import Address, Peer
from tests.support.waiting import until
from tests.support.wire import Publish

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
PASSWORD = shutil.which("mosquitto_passwd")
USERS = {"root": b"all", "ann": b"a-secret", "bob": b"b-secret"}
ACL = """\
topic read open/#
topic deny open/closed

user root
topic readwrite #

user ann
topic readwrite ann/#
topic read news/+
topic deny ann/secret
topic write drop

user bob
topic read q/#

pattern readwrite own/%c/#
pattern read to/%u
pattern deny own/+/never
"""
CONFIG = """\
user root
listener {port} 127.0.0.1
allow_anonymous true
password_file {directory}/passwords
acl_file {directory}/acl
persistence true
persistence_location {directory}/
max_queued_messages 100000
max_inflight_messages 0
include_dir {directory}/conf.d
"""
_SENT_AT_ONCE = 500


@asynccontextmanager
async def mosquitto(directory: Path, port: int) -> AsyncIterator[Address]:
    """Until SIGTERM, at which it saves what it has."""
    if MOSQUITTO is None or PASSWORD is None:
        absent("mosquitto")
    passwords = directory / "passwords"
    if not passwords.exists():
        passwords.touch(mode=0o600)
        for number, (name, password) in enumerate(USERS.items()):
            kind = ["-H", "sha512"] if number == 0 and _knows_kinds() else []
            subprocess.run([PASSWORD, *kind, "-b", str(passwords), name, password.decode()], check=True)
        (directory / "acl").write_text(ACL)
        (directory / "conf.d").mkdir()
        (directory / "conf.d" / "more.conf").write_text("queue_qos0_messages false\n")
        (directory / "mosquitto.conf").write_text(CONFIG.format(port=port, directory=directory))
    process = await asyncio.create_subprocess_exec(
        MOSQUITTO, "-c", str(directory / "mosquitto.conf"), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(patience(40)):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.02)
                    continue
                writer.close()
                break
        yield Address("127.0.0.1", port)
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


def _knows_kinds() -> bool:
    assert PASSWORD is not None
    return "-H" in subprocess.run([PASSWORD, "--help"], capture_output=True, text=True, check=False).stdout


async def connected(
    address: Address, client_id: str, user: str | None = None, version: int = 5, clean: bool = True
) -> Peer:
    peer = Peer(address, version)
    expiry = {c.SESSION_EXPIRY_INTERVAL: 100_000} if version == 5 and not clean else {}
    password = USERS[user] if user else None
    await peer.connect(client_id, clean, username=user, password=password, properties=expiry)
    return peer


async def publish_all(peer: Peer, messages: Sequence[tuple[str, bytes, bool]]) -> None:
    """QoS 1, many at once."""
    for start in range(0, len(messages), _SENT_AT_ONCE):
        some = messages[start : start + _SENT_AT_ONCE]
        await peer.send(
            *(
                Publish(topic, payload, 1, retain, False, number + 1, {})
                for number, (topic, payload, retain) in enumerate(some)
            )
        )
        for _ in some:
            assert (await peer.expect(Ack, type=c.PUBACK)).reason_code in (0, 0x10)


def migrate(directory: Path, capsys: pytest.CaptureFixture[str] | None = None) -> Path:
    into = directory / "taipan"
    assert main(["migrate", "mosquitto", str(directory / "mosquitto.conf"), "--into", str(into)]) == 0
    return into / "taipan.toml"


@asynccontextmanager
async def taipan(config: Path) -> AsyncIterator[NodeProcess]:
    # Nobody reads the log: it must not fill its pipe.
    node = NodeProcess(config, env={"TAIPAN__LOG__LEVEL": "error"})
    await node.start()
    try:
        yield node
    finally:
        assert await node.stop() == 0


def owed(number: int, each: int) -> list[bytes]:
    """What the session of that number is owed, in its order."""
    own = [f"{number}:{at}".encode() for at in range(each)]
    return [own[0], b"all:0", *own[1:], b"all:1"]


@pytest.mark.parametrize(
    "retained, sessions",
    [(300, 30), pytest.param(10_000, 1000, marks=pytest.mark.slow)],
)
async def test_clients_notice_a_reconnect_and_no_more(tmp_path: Path, retained: int, sessions: int) -> None:
    each = 5
    port = free_port()
    async with mosquitto(tmp_path, port) as address:
        for number in range(sessions):
            user = "bob" if number % 2 else "root"
            peer = await connected(address, f"s{number}", user, 4 + number % 2, clean=False)
            await peer.subscribe(TopicFilter(f"q/{number}", 1 + number % 2), TopicFilter("q/all", 1))
            await peer.disconnect()
            await peer.close()
        root = await connected(address, "publisher", "root")
        await publish_all(root, [(f"keep/{number}", b"%d" % number, True) for number in range(retained)])
        await publish_all(root, [(f"q/{number}", f"{number}:0".encode(), False) for number in range(sessions)])
        await publish_all(root, [("q/all", b"all:0", False)])
        rest = [
            (f"q/{number}", f"{number}:{at}".encode(), False) for at in range(1, each) for number in range(sessions)
        ]
        await publish_all(root, rest)
        await publish_all(root, [("q/all", b"all:1", False)])
        await root.close()
    async with taipan(migrate(tmp_path)):
        reader = await connected(address, "reader", "root")
        await reader.send(Subscribe(1, [TopicFilter("keep/#")]))
        await reader.answer(Suback, packet_id=1)
        got = {}
        for _ in range(retained):
            packet = await reader.expect(Publish)
            assert packet.retain
            got[packet.topic] = packet.payload
        assert got == {f"keep/{number}": b"%d" % number for number in range(retained)}
        await reader.close()
        for number in range(sessions):
            version = 4 + number % 2
            peer = Peer(address, version)
            user = "bob" if number % 2 else "root"
            expiry = {c.SESSION_EXPIRY_INTERVAL: 100_000} if version == 5 else {}
            await peer.connect(
                f"s{number}", False, username=user, password=USERS[user], properties=expiry, session_present=True
            )
            wanted = owed(number, each)
            payloads = []
            while len(payloads) < len(wanted):
                packet = await peer.expect(Publish)
                payloads.append(packet.payload)
                assert not packet.dup and packet.qos == 1
                await peer.puback(packet.packet_id)
            assert payloads == wanted
            await peer.ping()
            await peer.close()


async def test_what_was_in_flight_goes_on(tmp_path: Path) -> None:
    port = free_port()
    async with mosquitto(tmp_path, port) as address:
        one, two = [await connected(address, f"c{qos}", "root", 4, clean=False) for qos in (1, 2)]
        released = await connected(address, "released", "root", 4, clean=False)
        for peer, qos in ((one, 1), (two, 2), (released, 2)):
            await peer.subscribe(TopicFilter("f/#", qos))
        root = await connected(address, "publisher", "root", 4, clean=False)
        for at in range(3):
            await root.publish("f/x", b"%d" % at, 2)
        for peer, qos in ((one, 1), (two, 2)):
            for at in range(3):
                await peer.expect(Publish, topic="f/x", payload=b"%d" % at, qos=qos)
        ids = [(await released.expect(Publish, payload=b"%d" % at, qos=2)).packet_id for at in range(3)]
        await released.pubrec(ids[0])
        await released.expect_ack(c.PUBREL, ids[0])
        # Its own message of QoS 2, which nobody has yet.
        await root.send(Publish("f/late", b"late", 2, False, False, 77, {}))
        await root.expect_ack(c.PUBREC, 77, None)
        for peer in (one, two, released, root):
            await peer.disconnect()
            await peer.close()
    async with taipan(migrate(tmp_path)):
        for client_id, qos in (("c1", 1), ("c2", 2)):
            peer = await connected(address, client_id, "root", 4, clean=False)
            assert peer.connack.session_present
            for at in range(3):
                packet = await peer.expect(Publish)
                assert (packet.payload, packet.qos, packet.dup) == (b"%d" % at, qos, True)
            packet = await peer.expect(Publish)
            assert (packet.topic, packet.payload, packet.dup) == ("f/late", b"late", False)
            await peer.close()
        peer = await connected(address, "released", "root", 4, clean=False)
        got = [await peer.receive() for _ in range(4)]
        (pubrel,) = [each for each in got if isinstance(each, Ack)]
        assert (pubrel.type, pubrel.packet_id) == (c.PUBREL, ids[0])
        again = [(each.payload, each.packet_id, each.dup) for each in got if isinstance(each, Publish)]
        assert again[:2] == [(b"1", ids[1], True), (b"2", ids[2], True)] and again[2][0] == b"late"
        await peer.close()
        root = await connected(address, "publisher", "root", 4, clean=False)
        await root.pubrel(77)
        await root.expect_ack(c.PUBCOMP, 77, None)
        await root.close()


ASKED = [
    "open/x", "open/closed", "ann/x", "ann/secret", "news/a", "news/a/b", "drop", "q/1", "own/{id}/x", "own/other/x",
    "own/{id}/never", "to/ann", "to/bob", "elsewhere",
]  # fmt: skip
"""Topics that each user asks for, to publish to and to read."""


async def permissions(address: Address, user: str | None) -> dict[tuple[str, str], bool]:
    """What the broker lets this user do; ``read``: whether a message comes."""
    client_id = f"id-{user or 'nobody'}"
    peer, root = await connected(address, client_id, user), await connected(address, "asking", "root")
    found = {}
    for topic in ASKED:
        topic = topic.format(id=client_id)
        found["write", topic] = await peer.publish(topic, b"w", 1, expect=None) < 0x80
        await peer.send(Subscribe(500, [TopicFilter(topic, 1)]))
        (code,) = (await peer.answer(Suback, packet_id=500)).reason_codes
        await root.publish(topic, b"r", 1)
        await peer.send(Publish(f"own/{client_id}/mark", b"", 1, False, False, 900, {}))
        got = False
        while True:  # what comes before the answer to the mark
            packet = await peer.receive()
            if isinstance(packet, Publish):
                got = True
                await peer.puback(packet.packet_id)
            elif isinstance(packet, Ack) and packet.packet_id == 900:
                break
        found["read", topic] = code < 0x80 and got
        await peer.unsubscribe(topic, expect=[0 if code < 0x80 else 0x11])
    await peer.close()
    await root.close()
    return found


async def login(address: Address, user: str, password: bytes | None) -> int:
    peer = Peer(address, 5)
    code = (await peer.connect("login", username=user, password=password, expect=None)).reason_code
    await peer.close()
    return code


async def test_users_and_rules_say_what_they_said(tmp_path: Path) -> None:
    """Asked of both brokers."""
    port = free_port()
    people = ("ann", "bob", None)
    async with mosquitto(tmp_path, port) as address:
        before = {user: await permissions(address, user) for user in people}
        refused = await login(address, "ann", b"wrong"), await login(address, "carl", b"x")
    assert all(code >= 0x80 for code in refused)
    async with taipan(migrate(tmp_path)):
        after = {user: await permissions(address, user) for user in people}
        assert after == before
        assert {value for each in before.values() for value in each.values()} == {True, False}
        for name, password in USERS.items():
            assert await login(address, name, password) == 0
            assert await login(address, name, password + b".") >= 0x80
        assert await login(address, "carl", b"x") >= 0x80 and await login(address, "ann", None) >= 0x80


async def test_a_hash_is_renewed_at_the_next_login(tmp_path: Path) -> None:
    port = free_port()
    async with mosquitto(tmp_path, port) as address:
        pass
    config = migrate(tmp_path)

    def renewed() -> bool:
        """Whether a hash of ours stands in a row of the user, in the database or in what it has not taken over yet."""
        stored = b"".join(path.read_bytes() for path in (config.parent / "data").glob("taipan.db*"))
        return re.search(rb"username:ann[^:]{,100}scrypt\$", stored) is not None

    async with taipan(config):
        assert await login(address, "ann", USERS["ann"]) == 0
        await until(renewed)
        assert await login(address, "ann", USERS["ann"]) == 0
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "taipan.management.ctl.main", "--config", str(config), "--json", "users", "list",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await process.communicate()
        assert b"ann" in said
    assert renewed()


async def test_a_bridge_goes_on(tmp_path: Path) -> None:
    """It sends and fetches at the first start, with its prefixes; nothing goes in a circle."""
    far_port, port = free_port(), free_port()
    far_directory = tmp_path / "far"
    far_directory.mkdir()
    async with mosquitto(far_directory, far_port) as far:
        config = tmp_path / "mosquitto.conf"
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\nconnection far\naddress 127.0.0.1:{far_port}\n"
            "remote_clientid plant\nremote_username root\nremote_password all\nrestart_timeout 1\n"
            "topic m/# out 1 here/ there/\ntopic # in 1 got/ down/\n"
        )
        async with taipan(await asyncio.to_thread(migrate, tmp_path)):
            away, near = await connected(far, "away", "root"), await connected(Address("127.0.0.1", port), "near")
            await away.subscribe(TopicFilter("there/#", 1))
            await near.subscribe(TopicFilter("got/#", 1))
            await near.publish("here/m/1", b"out", 1)
            packet = await away.expect(Publish, topic="there/m/1", payload=b"out", qos=1)
            await away.puback(packet.packet_id)
            while True:  # until its subscription stands there
                await away.publish("down/x", b"in", 1)
                with contextlib.suppress(AssertionError):
                    packet = await near.expect(Publish, timeout=0.5)
                    break
            assert (packet.topic, packet.payload) == ("got/x", b"in")
            await away.close()
            await near.close()


async def test_a_database_of_1_6_and_another_order(tmp_path: Path) -> None:
    """Format 5 says of no session whose it is. A queue keeps its order, whatever the order of the messages is."""
    port = free_port()
    made = DbWriter(5)
    for number in range(1, 5):
        made.message(number, "q", b"%d" % number, 1)
    made.message(9, "kept", b"old", 0, True).retained(9)
    for client, order in (("a", [1, 2, 3, 4]), ("b", [3, 1, 4, 2, 2])):
        made.client(client)
        for at, number in enumerate(order, 1):
            made.delivery(client, number, at, 1, db.QUEUED)
        made.subscription(client, "q", 1)
    made.client("gone", expires=1000, interval=60)
    (tmp_path / "mosquitto.db").write_bytes(made.bytes())
    (tmp_path / "mosquitto.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {tmp_path}/\n"
    )
    address = Address("127.0.0.1", port)
    async with taipan(migrate(tmp_path)):
        for client, order in (("a", [1, 2, 3, 4]), ("b", [3, 1, 4, 2, 2])):
            peer = await connected(address, client, version=4, clean=False)
            assert peer.connack.session_present
            for number in order:
                packet = await peer.expect(Publish)
                assert packet.payload == b"%d" % number
                await peer.puback(packet.packet_id)
            await peer.nothing()
            await peer.close()
        gone = await connected(address, "gone", clean=False)
        assert not gone.connack.session_present
        await gone.subscribe("kept")
        assert (await gone.expect(Publish)).payload == b"old"
        await gone.close()
    # What the first start has made of it, the second one reads.
    async with taipan(tmp_path / "taipan" / "taipan.toml"):
        peer = await connected(address, "a", version=4, clean=False)
        assert peer.connack.session_present
        await peer.nothing()
        await peer.close()
