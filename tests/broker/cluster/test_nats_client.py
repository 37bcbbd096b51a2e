"""NatsClient where things go wrong: servers that refuse, die, hang, come back empty; credentials and TLS."""

import asyncio
import contextlib
import json
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nkeys
import pytest

from taipan.broker.cluster.nats.client import NatsClient
from taipan.broker.cluster.nats.connection import NatsConnection
from taipan.broker.cluster.nats.interface import (
    BUCKETS,
    HEADROOM,
    REPLICAS,
    NatsRefused,
    NoAnswer,
    TooLarge,
    Unavailable,
    Unknown,
    WrongRevision,
)
from taipan.broker.config import ClusterSettings
from tests.support.patience import patience

from ...support.certificates import Certificates
from ...support.nats_server import NatsServers
from ...support.node import free_port
from .test_nats_contract import Told, answered, until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

LARGEST = 1_000_000


@asynccontextmanager
async def client(urls: tuple[str, ...], name: str = "a", **settings: Any) -> AsyncIterator[NatsClient]:
    made = NatsClient(ClusterSettings(servers=urls, **settings), name, LARGEST)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def refusal(urls: tuple[str, ...], **settings: Any) -> NatsRefused:
    """Why ``start`` and ``probe`` refuse, which say the same."""
    made = NatsClient(ClusterSettings(servers=urls, **settings), "a", LARGEST)
    with pytest.raises(NatsRefused) as caught:
        await made.start()
    with pytest.raises(NatsRefused) as again:
        await made.probe()
    assert str(caught.value) == str(again.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{caught.value.setting}: ")
    return caught.value


async def replicas(nats: NatsClient, bucket: str) -> int:
    stream = json.loads(await nats.request(f"$JS.API.STREAM.INFO.KV_taipan-taipan-{bucket}", b"", 5.0))
    return int(stream["config"]["num_replicas"])


# ------------------------------------------------------------ lost connections


async def test_subscriptions_watches_and_writes_last_over_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with NatsServers() as servers, client(servers.urls) as a, client(servers.urls, "b") as b:
        told = Told(b)
        heard: list[bytes] = []
        lost: list[str] = []
        b.subscribe("taipan.t.x", lambda data, reply: heard.append(data) or b.publish(reply, data))
        a.on_disconnected.append(lambda: lost.append("down"))
        a.on_connected.append(lambda: lost.append("up"))
        first = await a.write("rows", "k", b"1", 0, "n1")
        await told.until(("k", b"1"))
        await servers[0].kill()
        await until(lambda: not a.connected and not b.connected)
        assert not a.quorum
        a.publish("taipan.t.x", b"dropped")
        with pytest.raises(Unavailable, match="not connected"):
            await a.request("taipan.t.x", b"", 1.0)
        with pytest.raises(Unavailable, match="not connected"):
            await a.read("rows", "k")
        with pytest.raises(Unavailable, match="not connected"):
            await a.write("rows", "k", b"2", first, "n2", timeout=0.05)
        later = asyncio.create_task(a.write("rows", "k", b"3", first, "n3", timeout=20.0))
        await servers[0].start()
        assert await later > first
        await told.until(("k", b"1"), ("k", b"3"))
        assert told.values == [("k", b"1"), ("k", b"3")] and len(told.current) == 1
        async with asyncio.timeout(patience(40)):
            assert await answered(a, "taipan.t.x") == b""
        assert set(heard) == {b""}
        assert lost == ["down", "up"] and a.quorum
    assert "nats_disconnected" in caplog.text and "nats_connected" in caplog.text


@pytest.mark.slow
async def test_a_server_that_hangs_is_left(caplog: pytest.LogCaptureFixture) -> None:
    async with NatsServers() as servers, client(servers.urls) as a:
        told = Told(a)
        await until(lambda: bool(told.current))
        servers[0].pause()
        with pytest.raises(Unknown):
            await a.write("rows", "k", b"1", 0, "n1", timeout=0.3)
        # More than the sockets' buffers hold, so that not even the close of the connection gets through.
        for _ in range(20):
            a.publish("taipan.t.x", b"x" * LARGEST)
        await until(lambda: not a.connected)
        servers[0].resume()
        await until(lambda: a.connected and a.quorum)
        # The write that had no answer may have been applied when the server went on: the same nonce tells.
        written = await a.write("rows", "k", b"1", 0, "n1")
        await told.until(("k", b"1"))
        assert told.watch.revision == written and len(told.entries) == 1


async def test_buckets_that_lost_their_data_are_told_and_begin_anew(caplog: pytest.LogCaptureFixture) -> None:
    async with NatsServers() as servers, client(servers.urls) as a, client(servers.urls, "b") as b:
        told = Told(b)
        lost: list[str] = []
        b.on_lost.append(lost.append)
        for number in range(5):
            await a.write("rows", f"k{number}", b"", 0, f"n{number}")
        await until(lambda: told.watch.revision == 5)
        await servers[0].kill()
        servers[0].forget()
        await servers[0].start()
        await until(lambda: "rows" in lost)
        assert await a.write("rows", "new", b"1", 0, "m") == 1
        await told.until(("new", b"1"))
        assert told.watch.revision == 1 and sorted(lost) == sorted(set(lost)) and len(lost) == 6
    assert "nats_bucket_lost bucket=rows" in caplog.text


@pytest.mark.slow
async def test_a_bucket_that_somebody_deletes_is_made_again() -> None:
    async with NatsServers() as servers, client(servers.urls) as a:
        told = Told(a)
        lost: list[str] = []
        a.on_lost.append(lost.append)
        await a.write("rows", "k", b"", 0, "n")
        await told.until(("k", b""))
        await a.request("$JS.API.STREAM.DELETE.KV_taipan-taipan-rows", b"", 5.0)
        await until(lambda: lost == ["rows"])
        assert await a.write("rows", "new", b"", 0, "m") == 1
        await told.until(("new", b""))


async def test_a_bucket_that_no_node_uses_has_no_entries_and_is_created_for_a_watch() -> None:
    """Without ``cluster.replicas``, no node creates bucket ``replicas``."""
    async with NatsServers() as servers, client(servers.urls) as a:
        assert await a.read(REPLICAS, "b") is None and a.quorum
        told = Told(a, REPLICAS)
        await until(lambda: told.watch.current)
        await a.write(REPLICAS, "b", b"1", 0, "n1")
        await told.until(("b", b"1"))
        assert a.quorum


async def test_without_a_server_at_the_start_it_comes_later(caplog: pytest.LogCaptureFixture) -> None:
    async with NatsServers() as servers:
        await servers[0].kill()
        async with client(servers.urls) as a:
            told = Told(a)
            assert not a.connected and "nats_unreachable" in caplog.text and "cluster.servers" in caplog.text
            with pytest.raises(NatsRefused, match=r"cluster.servers: nats://127.0.0.1:\d+: Connection refused$"):
                await NatsClient(ClusterSettings(servers=servers.urls), "b", LARGEST).probe()
            await servers[0].start()
            await until(lambda: bool(told.current))
            await a.write("rows", "k", b"1", 0, "n")
            await told.until(("k", b"1"))


async def test_what_a_server_holds_against_a_connection_ends_that_one_only() -> None:
    """A server closes it after most of what it calls an error."""
    async with NatsServers() as servers, client(servers.urls) as a:
        subject = "taipan.t." + "x" * 5000
        went: list[str] = []
        a.on_disconnected.append(lambda: went.append("down"))
        a.publish(subject, b"")  # the server's control line has at most 4096
        await until(lambda: went == ["down"] and a.connected)
        await a.write("rows", "k", b"1", 0, "n")


async def test_a_reply_subject_that_is_no_text_does_not_cost_the_connection() -> None:
    async with NatsServers() as servers, client(servers.urls) as a:
        heard: list[bytes] = []
        refused: list[None] = []
        lost: list[None] = []
        a.subscribe("taipan.t.x", lambda data, reply: heard.append(data))
        a.on_unreadable = lambda: refused.append(None)
        a.on_disconnected.append(lambda: lost.append(None))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(servers.urls[0].rsplit(":", 1)[1]))
        await reader.readline()
        writer.write(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
        while not refused:  # until the server knows of the subscription
            writer.write(b"PUB taipan.t.x \xff\xfe 2\r\nhi\r\n")
            await asyncio.sleep(0.01)
        writer.write(b"PUB taipan.t.x 2\r\nho\r\n")
        await until(lambda: heard == [b"ho"])
        writer.close()
        assert a.connected and not lost


async def test_a_value_that_does_not_fit_is_refused_and_nothing_breaks() -> None:
    async with NatsServers() as servers, client(servers.urls) as a:
        for size in (a.max_payload - HEADROOM + 1, a.max_payload, a.max_payload + 1):
            with pytest.raises(TooLarge, match="max_payload"):
                await a.write("rows", "k", b"x" * size, 0, "n")
        await a.write("rows", "k", b"x" * (a.max_payload - HEADROOM), 0, "n")
        assert a.connected


async def test_a_write_that_meets_one_under_way_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own, sent before a connection broke, may be the one: it has lost only when another value is there."""
    sent = NatsConnection.request
    refused: list[str] = []

    async def request(self: NatsConnection, subject: str, *arguments: Any) -> bytes:
        if subject.startswith("$KV.") and len(refused) < 3:
            refused.append(subject)
            return b'{"error": {"code": 400, "err_code": 10164, "description": "wrong last sequence"}}'
        return await sent(self, subject, *arguments)

    async with NatsServers() as servers, client(servers.urls) as a:
        first = await a.write("rows", "k", b"1", 0, "n1")
        monkeypatch.setattr(NatsConnection, "request", request)
        assert await a.write("rows", "k", b"2", first, "n2") == first + 1
        assert len(refused) == 3


# --------------------------------------------------------------- three servers


@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_three_servers_bear_the_loss_of_one() -> None:
    async with NatsServers(3) as servers, client(servers.urls) as a, client(servers.urls, "b") as b:
        assert await replicas(a, "rows") == 3
        told = Told(b)
        revision = await a.write("rows", "k", b"0", 0, "n0", timeout=20.0)
        await told.until(("k", b"0"))
        for number, server in enumerate(servers, 1):
            await server.kill()
            revision = await a.write("rows", "k", b"%d" % number, revision, f"n{number}", timeout=20.0)
            await told.until(("k", b"%d" % number))
            await server.start()
            await until(lambda: a.quorum and b.quorum)
        assert told.values == [("k", b"%d" % number) for number in range(4)]


@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_without_a_quorum_nothing_is_written_and_messages_pass() -> None:
    async with NatsServers(3) as servers, client((servers.urls[0],)) as a:
        async with asyncio.timeout(patience(60)):
            while [await replicas(a, bucket) for bucket in BUCKETS] != [3] * len(BUCKETS):  # one server is named
                await asyncio.sleep(0.05)
        await servers.until_whole()
        await servers[1].kill()
        await servers[2].kill()
        await until(lambda: not a.quorum)
        with pytest.raises((Unavailable, Unknown)):
            await a.write("rows", "k", b"", 0, "n", timeout=1.5)
        a.subscribe("taipan.t.x", lambda data, reply: a.publish(reply, data))
        assert await answered(a, "taipan.t.x") == b""
        await servers[1].start()
        await until(lambda: a.quorum)
        await a.write("rows", "k", b"", 0, "n", timeout=50.0)


async def test_a_question_to_nats_that_is_not_answered_says_so() -> None:
    async with NatsServers() as servers, client(servers.urls) as a:
        assert a._connection is not None
        with pytest.raises(NoAnswer, match=r"^no answer from NATS to \$JS\.API\.INFO$"):
            await a._connection.request("$JS.API.INFO", b"", 0.0)


NO_LEADER = b'{"error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}}'
NO_QUORUM = r"^cluster.servers: nats://127.0.0.1:\d+ has no quorum yet: JetStream has no leader\. [^\n]*$"


def silenced(monkeypatch: pytest.MonkeyPatch, answer: bytes | None) -> None:
    """JetStream answers so where it would need its leader; ``None``: it does not answer."""
    sent = NatsConnection.request

    async def request(self: NatsConnection, subject: str, *arguments: Any) -> bytes:
        if subject == "$JS.API.INFO" or subject.startswith("$JS.API.CONSUMER.CREATE."):
            if answer is None:
                raise NoAnswer(subject)
            return answer
        return await sent(self, subject, *arguments)

    monkeypatch.setattr(NatsConnection, "request", request)


async def test_no_quorum_at_the_start_is_said_once_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Buckets are there, and none can be watched: so it is when two of three servers have died a moment ago."""
    caplog.set_level(logging.INFO)
    async with NatsServers() as servers:
        async with client(servers.urls):
            pass
        with monkeypatch.context() as patch:
            # A start that waits for the whole time ends after the test is to have ended.
            patch.setattr("taipan.broker.cluster.nats.client.STARTING", 600.0)
            silenced(patch, NO_LEADER)
            with pytest.raises(NatsRefused, match=NO_QUORUM):
                await NatsClient(ClusterSettings(servers=servers.urls), "b", LARGEST).probe()
            a = NatsClient(ClusterSettings(servers=servers.urls), "a", LARGEST)
            await a.start()
            told = [Told(a, bucket) for bucket in BUCKETS]
            assert a.connected and not a.quorum
            await asyncio.sleep(1.0)  # many attempts
        await until(lambda: all(each.current for each in told) and a.quorum)
        await a.stop()
    said = [record.getMessage() for record in caplog.records]
    assert [line.split(" ")[0] for line in said if "quorum" in line] == ["nats_no_quorum", "nats_quorum_back"]
    assert not any("nats_watch_failed" in line for line in said)


async def test_no_quorum_while_it_runs_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with NatsServers() as servers, client(servers.urls) as a:
        with monkeypatch.context() as patch:
            silenced(patch, NO_LEADER)
            told = [Told(a, bucket) for bucket in BUCKETS]
            await until(lambda: "nats_no_quorum" in caplog.text)
            await asyncio.sleep(1.5)  # more than one attempt of each watch
        await until(lambda: all(each.current for each in told) and "nats_quorum_back" in caplog.text)
    assert caplog.text.count("nats_no_quorum") == 1 and "nats_watch_failed" not in caplog.text


async def test_servers_that_are_silent_for_long_have_no_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are silent while they elect a leader."""
    async with NatsServers() as servers:
        silenced(monkeypatch, None)
        monkeypatch.setattr("taipan.broker.cluster.nats.api.ELECTION", 0.3)
        monkeypatch.setattr("taipan.broker.cluster.nats.client.STARTING", 600.0)
        with pytest.raises(NatsRefused, match=NO_QUORUM):
            await NatsClient(ClusterSettings(servers=servers.urls), "b", LARGEST).probe()
        async with client(servers.urls) as a:
            assert a.connected and not a.quorum


async def test_why_a_bucket_is_not_followed_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taipan.broker.cluster.nats.watch._AFTER_A_FAILURE", 0.01)
    async with NatsServers() as servers, client(servers.urls) as a:
        with monkeypatch.context() as patch:
            silenced(patch, b'{"error": {"code": 400, "err_code": 10026, "description": "maximum consumers"}}')
            told = Told(a)
            await until(lambda: "nats_watch_failed" in caplog.text)
            await asyncio.sleep(0.2)
        await until(lambda: bool(told.current))
    assert caplog.text.count("nats_watch_failed") == 1


async def in_time(true: Callable[[], bool]) -> None:
    """Where servers elect leaders, one bucket after the other."""
    async with asyncio.timeout(patience(60)):
        while not true():
            await asyncio.sleep(0.05)


async def has_no_quorum(urls: list[str]) -> bool:
    try:
        await NatsClient(ClusterSettings(servers=urls), "b", LARGEST).probe()
    except NatsRefused as refused:
        return re.match(NO_QUORUM, str(refused)) is not None
    return False


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_one_server_of_three_has_no_quorum(caplog: pytest.LogCaptureFixture) -> None:
    """Both where it has just lost the others and where it has started alone."""
    caplog.set_level(logging.INFO)
    async with NatsServers(3) as servers:
        async with client(servers.urls) as a:
            await in_time(lambda: a.quorum)
        await servers.until_whole()
        await servers[1].kill()
        await servers[2].kill()
        for again in (False, True):
            if again:
                await servers[0].kill()
                await servers[0].start()
            # A leader that has lost the others answers until it notices.
            async with asyncio.timeout(patience(60)):
                while not await has_no_quorum(servers.urls):
                    await asyncio.sleep(0.2)
            caplog.clear()
            async with client(servers.urls, "b") as b:
                assert b.connected
                for bucket in BUCKETS:
                    b.watch(bucket, lambda entry: None, lambda: None)
                await in_time(lambda: "nats_no_quorum" in caplog.text)
                await asyncio.sleep(3.0)
            assert caplog.text.count("nats_no_quorum") == 1 and "nats_watch_failed" not in caplog.text
        async with client(servers.urls, "b") as b:
            await servers[1].start()
            await in_time(lambda: b.quorum)


async def test_servers_that_know_nothing_of_each_other_are_refused() -> None:
    """Also where they have buckets: each was used alone before, or has lost the lines that made a cluster of them."""
    alone = r"cluster.servers: .* is not in a cluster of NATS servers, but 2 are configured: they would not know"
    async with NatsServers() as one, NatsServers() as other:
        assert re.match(alone, str(await refusal(one.urls + other.urls)))
        for servers in (one, other):
            async with client(servers.urls) as a:
                assert a.quorum
        assert re.match(alone, str(await refusal(one.urls + other.urls)))


async def test_servers_that_only_have_the_name_of_a_cluster_are_refused() -> None:
    """Without ``listen`` in ``cluster { }`` there is none; that is seen when a bucket is to have replicas."""
    more = 'max_payload: 4MB\ncluster { name: "test", routes: ["nats://127.0.0.1:1"] }\n'
    async with NatsServers(more=more) as one, NatsServers(more=more) as other:
        made = NatsClient(ClusterSettings(servers=one.urls + other.urls), "a", LARGEST)
        with pytest.raises(
            NatsRefused, match=r"cluster.servers: .* is not in a cluster of NATS servers, but 2 are configured"
        ):
            await made.start()


# -------------------------------------------------------- who we are, and TLS


async def test_user_and_password() -> None:
    async with NatsServers(more='authorization { user: "ann", password: "secret" }\n') as servers:
        async with client(servers.urls, user="ann", password="secret") as a:
            await a.write("rows", "k", b"", 0, "n")
        wrong = await refusal(servers.urls, user="ann", password="wrong")
        said = f"{servers.urls[0]} rejects this node"
        assert str(wrong) == f"cluster.user: {said} with user ann and its password: Authorization Violation"
        wrong = await refusal(servers.urls)
        assert str(wrong) == (
            f"cluster.user: {said}, and no user, token, nkey_file or credentials_file is set: Authorization Violation"
        )
        wrong = await refusal(servers.urls, token="t")
        assert str(wrong) == f"cluster.token: {said} with the token that is set: Authorization Violation"


async def test_token() -> None:
    async with NatsServers(more='authorization { token: "open" }\n') as servers:
        async with client(servers.urls, token="open") as a:
            assert a.quorum
        assert (await refusal(servers.urls, token="wrong")).setting == "cluster.token"


async def test_nkey(tmp_path: Path) -> None:
    seeds = [nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER) for number in (1, 2)]
    public = nkeys.from_seed(bytearray(seeds[0])).public_key.decode()
    for seed, name in zip(seeds, ("right", "other"), strict=True):
        (tmp_path / name).write_bytes(seed + b"\n")
    (tmp_path / "none").write_text("no seed")
    async with NatsServers(more=f'authorization {{ users: [ {{ nkey: "{public}" }} ] }}\n') as servers:
        async with client(servers.urls, nkey_file=str(tmp_path / "right")) as a:
            assert a.quorum
        wrong = await refusal(servers.urls, nkey_file=str(tmp_path / "other"))
        assert wrong.setting == "cluster.nkey_file"
        assert f"rejects this node with the NKey in {tmp_path / 'other'}: Authorization Violation" in str(wrong)
        wrong = await refusal(servers.urls, nkey_file=str(tmp_path / "none"))
        assert "does not hold the seed of an NKey" in str(wrong)
        wrong = await refusal(servers.urls, credentials_file=str(tmp_path / "none"))
        assert wrong.setting == "cluster.credentials_file" and "does not hold credentials" in str(wrong)


async def test_tls(certificates: Certificates, tmp_path: Path) -> None:
    certfile, keyfile = certificates.issue("localhost")
    more = f'tls {{ cert_file: "{certfile}", key_file: "{keyfile}" }}\n'
    async with NatsServers(more=more) as servers:
        plain = servers.urls
        secure = tuple(url.replace("nats://127.0.0.1", "tls://localhost") for url in plain)
        async with client(secure, tls_ca=certificates.ca) as a:
            assert a.quorum
        async with client(secure, tls_verify=False) as a:
            assert a.quorum
        wrong = await refusal(secure)
        assert wrong.setting == "cluster.tls_ca" and "cannot be trusted: unable to get local issuer" in str(wrong)
        assert str(wrong).endswith("; no tls_ca is set: only the authorities of the system are trusted")
        wrong = await refusal(secure, tls_ca=Certificates(tmp_path).ca)
        assert wrong.setting == "cluster.tls_ca" and "cannot be trusted: " in str(wrong)
        assert "no tls_ca is set" not in str(wrong)
        wrong = await refusal(plain)
        assert wrong.setting == "cluster.servers" and "requires TLS" in str(wrong)
    async with NatsServers() as servers:
        secure = tuple(url.replace("nats://", "tls://") for url in servers.urls)
        wrong = await refusal(secure, user="ann", password="secret")
        assert wrong.setting == "cluster.servers" and "does not speak TLS" in str(wrong)


async def test_a_certificate_for_another_address(certificates: Certificates) -> None:
    """Whoever has signed it: that is no matter of ``tls_ca``."""
    certfile, keyfile = certificates.issue("nats.example")
    async with NatsServers(more=f'tls {{ cert_file: "{certfile}", key_file: "{keyfile}" }}\n') as servers:
        secure = servers.urls[0].replace("nats://", "tls://")
        by_name = secure.replace("127.0.0.1", "localhost")
        for url, what in ((secure, "IP address mismatch"), (by_name, "Hostname mismatch")):
            wrong = str(await refusal((url,), tls_ca=certificates.ca))
            assert wrong.startswith(f"cluster.servers: the certificate of {url} is for other addresses: {what}, ")
        async with client((secure,), tls_ca=certificates.ca, tls_verify=False) as a:
            assert a.quorum


async def test_a_certificate_that_has_expired(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its authority is one of the system: a ``tls_ca`` would not help."""
    monkeypatch.setenv("SSL_CERT_FILE", certificates.ca)
    certfile, keyfile = certificates.issue("localhost", expired=True)
    async with NatsServers(more=f'tls {{ cert_file: "{certfile}", key_file: "{keyfile}" }}\n') as servers:
        secure = servers.urls[0].replace("nats://", "tls://")
        wrong = str(await refusal((secure,)))
        assert wrong.endswith(f"the certificate of {secure} cannot be trusted: certificate has expired")


async def test_a_certificate_of_the_node_where_the_server_wants_one(certificates: Certificates) -> None:
    certfile, keyfile = certificates.issue("localhost")
    mine, key = certificates.issue("node")
    more = f'cert_file: "{certfile}", key_file: "{keyfile}", ca_file: "{certificates.ca}", verify: true'
    async with NatsServers(more=f"tls {{ {more} }}\n") as servers:
        secure = tuple(url.replace("nats://127.0.0.1", "tls://localhost") for url in servers.urls)
        async with client(secure, tls_ca=certificates.ca, tls_cert=mine, tls_key=key) as a:
            assert a.quorum
        assert (await refusal(secure, tls_ca=certificates.ca)).setting == "cluster.tls_cert"
        wrong = await refusal(secure, tls_ca=certificates.ca, tls_cert=key, tls_key=key)
        assert wrong.setting == "cluster.tls_cert" and "cannot use" in str(wrong)
        wrong = await refusal(secure, tls_ca=key)
        assert wrong.setting == "cluster.tls_ca" and "cannot use" in str(wrong)


async def test_a_missing_permission_is_named() -> None:
    more = 'authorization { users: [ { user: a, password: p, permissions: { publish: "taipan.>" } } ] }\n'
    async with NatsServers(more=more) as servers:
        wrong = NatsClient(ClusterSettings(servers=servers.urls, user="a", password="p"), "a", LARGEST)
        with pytest.raises(NatsRefused, match=r"^cluster.user: .*[Pp]ermissions"):
            await wrong.start()


# --------------------------------------------------------------- what it must be


async def test_room_for_the_largest_packet() -> None:
    async with NatsServers(more="max_payload: 1004095\n") as servers:
        wrong = await refusal(servers.urls)
    assert wrong.setting == "max_packet_size"
    assert "is 1004095: set it to 1004096 or more there, or max_packet_size here to at most 999999" in str(wrong)


async def test_without_jetstream() -> None:
    async with NatsServers(more="max_payload: 4MB\njetstream: disabled\n") as servers:
        wrong = NatsClient(ClusterSettings(servers=servers.urls), "a", LARGEST)
        with pytest.raises(NatsRefused) as caught:
            await wrong.probe()
    assert str(caught.value) == (
        f"cluster.servers: {servers.urls[0]} has no JetStream: it requires jetstream {{ }} in its configuration, or -js"
    )


@asynccontextmanager
async def greeting(version: str, *others: str) -> AsyncIterator[str]:
    """A server that says only this version, of a cluster with ``others``, and answers PING."""
    info = {"server_id": "x", "version": version, "max_payload": 8_000_000, "headers": True, "cluster": "c"}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(b"INFO " + json.dumps(info | {"connect_urls": others}).encode() + b"\r\n")
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        writer.close()

    port = free_port()
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.close()


@pytest.mark.parametrize("greeted", [False, True])
async def test_who_stops_while_it_connects_leaves_no_connection(greeted: bool) -> None:
    """It was left open where the task was cancelled."""
    come, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if greeted:
            writer.write(b'INFO {"server_id": "x", "version": "2.11.0", "max_payload": 8000000, "headers": true}\r\n')
            await reader.readline()  # CONNECT; there is no answer to PING
        come.set()
        await reader.read()
        writer.close()
        gone.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connecting = NatsClient(ClusterSettings(servers=(url,), connect_timeout=600.0), "a", LARGEST)
    starting = asyncio.create_task(connecting.probe())
    await asyncio.wait_for(come.wait(), patience(40))
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    await asyncio.wait_for(gone.wait(), patience(40))
    server.close()


async def test_several_servers_that_are_too_old() -> None:
    async with greeting("2.9.10") as one, greeting("2.10.25") as other:
        wrong = await refusal((other, one))
        assert wrong.setting == "cluster.servers"
        assert f"{one} is NATS 2.9.10; more than one server must be 2.10.25 or newer" in str(wrong)
    async with greeting("2.10.24", "127.0.0.1:1", "127.0.0.1:2") as one:
        assert "NATS 2.10.24" in str(await refusal((one,)))


async def test_deletions_do_not_stay_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keys(nats: NatsClient) -> int:
        stream = json.loads(await nats.request("$JS.API.STREAM.INFO.KV_taipan-taipan-sessions", b"", 5.0))
        return int(stream["state"]["messages"])

    async with NatsServers() as servers:
        async with client(servers.urls) as a:
            for number in range(3):
                revision = await a.write("sessions", f"k{number}", b"1", 0, f"n{number}")
                await a.write("sessions", f"k{number}", None, revision, f"d{number}")
            await a.write("sessions", "k0", b"2", 0, "n4")
            await a.write("sessions", "k1", b"2", 0, "n5")
            assert await keys(a) == 3
        monkeypatch.setattr("taipan.broker.cluster.nats.buckets.DELETIONS_KEPT", 2.0)
        async with client(servers.urls) as a:
            told = Told(a, "sessions")  # another node sees what the first one left
            await until(lambda: bool(told.current))
            assert told.values == [("k2", None), ("k0", b"2"), ("k1", b"2")]
            revision = (await a.read("sessions", "k1") or told.entries[0]).revision
            await a.write("sessions", "k1", None, revision, "d4")
            async with asyncio.timeout(patience(40)):
                while await keys(a) != 1:
                    await asyncio.sleep(0.05)
            assert (await a.read("sessions", "k0") or told.entries[0]).value == b"2"
            assert await a.read("sessions", "k2") is None
            await a.write("sessions", "k2", b"3", 0, "n6")


async def test_a_watch_that_was_away_for_long_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with NatsServers() as servers, client(servers.urls) as a:
        told = Told(a)
        lost: list[str] = []
        a.on_lost.append(lost.append)
        await a.write("rows", "k", b"1", 0, "n")
        await told.until(("k", b"1"))
        monkeypatch.setattr("taipan.broker.cluster.nats.buckets.DELETIONS_KEPT", 0.0)
        await servers[0].kill()
        await servers[0].start()
        await until(lambda: len(told.entries) == 2)
        assert lost == ["rows"] and told.values == [("k", b"1"), ("k", b"1")] and len(told.current) == 2
        told.watch.stop()


async def test_a_node_without_a_cluster_knows_nothing_of_nats() -> None:
    code = (
        "import sys, taipan.management.node, taipan.management.api.index, taipan.broker.server\n"
        "from taipan.management.configuration.config import load\n"
        "from taipan.broker.loop.clock import Clock\n"
        "taipan.broker.server.Server(load(None, ['durability.level=memory'], {}).broker, Clock())\n"
        "sys.exit(', '.join(name for name in sys.modules if 'nats_' in name or"
        " name == 'nkeys') or 0)\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_increments_are_neither_lost_nor_doubled_while_servers_fail() -> None:
    """Two nodes count up one key by compare-and-set; a server dies, one hangs, one comes back."""
    async with NatsServers(3) as servers, client(servers.urls) as a, client(servers.urls, "b") as b:
        told = Told(a)
        await a.write("rows", "k", b"0", 0, "first", timeout=20.0)
        done = [0, 0]
        unknown = 0
        going = True

        async def count(number: int, nats: NatsClient) -> None:
            nonlocal unknown
            attempt = 0
            while going:
                attempt += 1
                try:
                    entry = await nats.read("rows", "k")
                    assert entry is not None and entry.value is not None
                    value = b"%d" % (int(entry.value) + 1)
                    await nats.write("rows", "k", value, entry.revision, f"{number}-{attempt}", timeout=2.0)
                    done[number] += 1
                except Unknown:
                    unknown += 1
                except (Unavailable, NoAnswer, WrongRevision):
                    await asyncio.sleep(0.001)

        counting = [asyncio.create_task(count(number, nats)) for number, nats in enumerate((a, b))]

        async def more() -> None:
            """Both have gone on."""
            before = list(done)
            async with asyncio.timeout(patience(40)):
                while any(now < was + 20 for now, was in zip(done, before, strict=True)):
                    await asyncio.sleep(0.01)

        await more()
        for server in servers:
            server.pause()
            await more()
            server.resume()
            await more()
            await server.kill()
            await more()
            await server.start()
            await more()
        going = False
        await asyncio.gather(*counting)
        entry = await a.read("rows", "k")
        assert entry is not None and entry.value is not None
        assert sum(done) <= int(entry.value) <= sum(done) + unknown, (done, unknown)
        assert await told.watch.reached(entry.revision, 10.0)
        values = [int(each.value or b"") for each in told.entries]
        assert values == sorted(set(values)) and values[-1] == int(entry.value)
