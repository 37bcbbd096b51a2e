"""/auth_user: users by user name, and what their changes mean for real clients."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.access import foreign_hashes
from taipan.broker.access.emqx_hash import EmqxHash
from taipan.broker.access.foreign_hashes import NO_BCRYPT
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.stored.users import USERNAME
from tests.broker.access.test_foreign_hashes import BCRYPT, mosquitto6, mosquitto7
from tests.support.api import assert_refused, connect_code, managed_node, segment
from tests.support.no_package import without
from tests.support.patience import patience
from tests.support.peer import Peer
from tests.support.reason_codes import bad_credentials

pytestmark = pytest.mark.asyncio

CHEAP = {"hash_cost": 10}
ALICE = {"login": "alice", "password": "a1", "is_superuser": False}
ROOT = {"login": "root1", "password": "r1", "is_superuser": True}


async def test_post_answers_for_each_login() -> None:
    async with managed_node(access=CHEAP) as node:
        api = node.api
        assert (await api.post("/auth_user", [ALICE, ROOT])).data == {"alice": "ok", "root1": "ok"}
        twice = [{**ALICE, "login": "bob"}, {**ALICE, "login": "bob", "password": "other"}]
        assert (await api.post("/auth_user", twice)).data == {"bob": "ok"}
        again = await api.post("/auth_user", [{**ALICE, "password": "new"}, {**ALICE, "login": "carol"}])
        assert again.data == {"alice": "{error,existed}", "carol": "ok"}
        # One alone, as the real one takes it.
        assert (await api.post("/auth_user", {**ALICE, "login": "dave"})).data == {"dave": "ok"}
        assert await connect_code(node, "c", "alice", b"a1", 5) == 0
        assert await connect_code(node, "c", "alice", b"new", 5) == 0x86
        assert await connect_code(node, "c", "bob", b"a1", 4) == 0


@pytest.mark.parametrize("field", ["login", "password", "is_superuser"])
async def test_every_field(field: str) -> None:
    async with managed_node(access=CHEAP) as node:
        assert (await node.api.post("/auth_user", [ROOT])).code == 0
        listed = await node.api.get("/auth_user")
        (record,) = listed.data
        assert set(record) == {"login", "password", "is_superuser"}
        if field == "password":
            assert ScryptHash.parse(record[field]).verify(b"r1")
        else:
            assert record[field] == ROOT[field]
        assert listed.meta == {"page": 1, "limit": 10_000, "count": 1, "hasnext": False}
        assert (await node.api.get("/auth_user/root1")).data == record
        assert (await node.api.get("/auth_user/nobody")).data == {}


@pytest.mark.parametrize(
    "item, code",
    [
        ({"password": "x", "is_superuser": False}, 107),
        ({"login": "x", "is_superuser": False}, 107),
        ({"login": "x", "password": "x"}, 107),
        ({"login": "", "password": "x", "is_superuser": False}, 108),
        ({"login": "x", "password": "", "is_superuser": False}, 108),
        ({"login": "x", "password": "x", "is_superuser": "yes"}, 108),
        ({"login": 7, "password": "x", "is_superuser": False}, 108),
        ("x", 108),
    ],
)
async def test_one_bad_item_refuses_all(item: Any, code: int) -> None:
    async with managed_node(access=CHEAP) as node:
        assert_refused(await node.api.post("/auth_user", [ALICE, item]), 400, code)
        listed = await node.api.get("/auth_user")
        assert listed.data == [] and listed.meta["count"] == 0


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_password_is_needed(method: str) -> None:
    async with managed_node(access=CHEAP) as node:
        if method == "POST":
            given: Any = {"login": "alice", "is_superuser": False}
            assert_refused(await node.api.post("/auth_user", [given]), 400, 107, "password")
        else:
            await node.api.post("/auth_user", [ALICE])
            assert_refused(await node.api.put("/auth_user/alice", {"is_superuser": False}), 400, 107, "password")


async def test_bodies_that_are_none() -> None:
    async with managed_node(access=CHEAP) as node:
        assert_refused(await node.api.ask("POST", "/auth_user", raw=b"{"), 400, 109)
        assert_refused(await node.api.post("/auth_user", []), 400, 107)
        assert_refused(await node.api.post("/auth_user"), 400, 107)
        many = [{**ALICE, "login": f"u{number}"} for number in range(10_001)]
        assert_refused(await node.api.post("/auth_user", many), 400, 108, "10000")


async def test_put_changes_password_and_right() -> None:
    async with managed_node(access=CHEAP) as node:
        api = node.api
        odd = "sl/ash ü"
        assert (await api.post("/auth_user", [{**ALICE, "login": odd}])).data == {odd: "ok"}
        path = f"/auth_user/{segment(odd)}"
        assert await connect_code(node, "c", odd, b"a1", 5) == 0
        assert (await api.put(path, {"password": "a2", "is_superuser": True})).json == {"code": 0}
        assert (await api.get(path)).data["is_superuser"] is True
        assert await connect_code(node, "c", odd, b"a1", 5) == 0x86
        assert await connect_code(node, "c", odd, b"a2", 5) == 0
        assert_refused(await api.put(path, {"is_superuser": True}), 400, 107, "password")
        assert_refused(await api.put(path, {"password": "x"}), 400, 107, "is_superuser")
        assert_refused(await api.put(path, {"password": "x", "is_superuser": "x"}), 400, 108, "is_superuser")
        assert_refused(await api.put("/auth_user/nobody", {"password": "x", "is_superuser": True}), 404, 105)


@pytest.mark.parametrize("version", [4, 5])
async def test_delete(version: int) -> None:
    async with managed_node(access=CHEAP) as node:
        await node.api.post("/auth_user", [ALICE, ROOT])
        assert await connect_code(node, "c", "alice", b"a1", version) == 0
        assert (await node.api.delete("/auth_user/alice")).json == {"code": 0}
        # The broker remembered that she was right; it does no longer.
        assert await connect_code(node, "c", "alice", b"a1", version) == bad_credentials(version)
        assert_refused(await node.api.delete("/auth_user/alice"), 404, 105, "alice")


@pytest.mark.parametrize("version", [4, 5])
async def test_stored_users_and_anonymous_clients(version: int) -> None:
    """With users, a name must be known; who gives none is let in where anonymous clients are."""
    async with managed_node(access=CHEAP) as node:
        assert await connect_code(node, "c", "nobody", b"x", version) == 0
        await node.api.post("/auth_user", [ALICE])
        assert await connect_code(node, "c", "nobody", b"x", version) == bad_credentials(version)
        assert await connect_code(node, "c", "alice", None, version) == bad_credentials(version)
        assert await connect_code(node, "c", None, None, version) == 0
        await node.api.delete("/auth_user/alice")
        assert await connect_code(node, "c", "nobody", b"x", version) == 0


async def test_users_of_the_file_stay() -> None:
    users = [{"username": "fixed", "password_hash": str(ScryptHash.create(b"file", n=1024))}]
    async with managed_node(access={**CHEAP, "users": users}) as node:
        assert (await node.api.post("/auth_user", [{**ALICE, "login": "fixed"}])).data == {"fixed": "{error,existed}"}
        assert await connect_code(node, "c", "fixed", b"file", 5) == 0
        changed = {"password": "x", "is_superuser": True}
        assert_refused(await node.api.put("/auth_user/fixed", changed), 400, 108, "configuration")
        assert_refused(await node.api.delete("/auth_user/fixed"), 400, 108, "configuration")


@pytest.mark.parametrize("version", [4, 5])
async def test_a_connected_superuser_who_is_none_any_more(version: int) -> None:
    async with managed_node(access={**CHEAP, "no_match": "deny"}) as node:
        await node.api.post("/auth_user", [ROOT])
        peer = Peer(node.address(), version)
        await peer.connect("c", username="root1", password=b"r1")
        await peer.subscribe("free")
        await node.api.put("/auth_user/root1", {"password": "r1", "is_superuser": False})
        await peer.subscribe("shut", expect=[0x87 if version == 5 else 0x80])
        await node.api.put("/auth_user/root1", {"password": "r1", "is_superuser": True})
        await peer.subscribe("open again")
        await peer.close()


async def test_topics_that_were_open_to_a_superuser_are_shut_with_the_right() -> None:
    """Also those it was just publishing to, which the broker remembers."""
    async with managed_node(access={**CHEAP, "no_match": "deny"}) as node:
        await node.api.post("/auth_user", [ROOT])
        peer = await node.client("c", username="root1", password=b"r1")
        assert await peer.publish("t", qos=1, expect=(0, 0x10, 0x87)) != 0x87
        await node.api.put("/auth_user/root1", {"password": "r1", "is_superuser": False})
        assert await peer.publish("t", qos=1, expect=(0, 0x10, 0x87)) == 0x87


async def test_who_came_before_there_was_a_user_is_not_that_user() -> None:
    """A device that its client identifier's password let in may have called itself by any name."""
    async with managed_node(access={**CHEAP, "no_match": "deny"}) as node:
        await node.api.post("/auth_clientid", {"clientid": "device", "password": "d1"})
        device = await node.client("device", username="root1", password=b"d1")
        await node.api.post("/auth_user", [ROOT])
        await node.api.put("/auth_user/root1", {"password": "r2", "is_superuser": False})
        await node.api.put("/auth_user/root1", {"password": "r2", "is_superuser": True})
        assert await device.publish("t", qos=1, expect=(0, 0x10, 0x87)) == 0x87
        assert await connect_code(node, "device", "root1", b"d1", 5) == 0x86


async def test_a_name_without_proof_makes_no_superuser() -> None:
    """Connected before there were users, under a name that a superuser gets later."""
    async with managed_node(access={**CHEAP, "no_match": "deny"}) as node:
        peer = Peer(node.address(), 5)
        await peer.connect("c", username="root1", password=b"whatever")
        await node.api.post("/auth_user", [{**ROOT, "is_superuser": False}])
        await node.api.put("/auth_user/root1", {"password": "r1", "is_superuser": True})
        await peer.subscribe("shut", expect=[0x87])
        await peer.close()


async def test_pages() -> None:
    async with managed_node(access=CHEAP) as node:
        names = [f"u{number}" for number in range(5)]
        await node.api.post("/auth_user", [{**ALICE, "login": name} for name in names])
        first = await node.api.get("/auth_user", _page=1, _limit=2)
        assert [user["login"] for user in first.data] == names[:2]
        assert first.meta == {"page": 1, "limit": 2, "count": 5, "hasnext": True}
        last = await node.api.get("/auth_user", _page=3, _limit=2)
        assert [user["login"] for user in last.data] == names[4:] and not last.meta["hasnext"]


@pytest.mark.parametrize(
    "stored, salted",
    [
        (hashlib.sha256(b"old").hexdigest().encode(), False),
        (hashlib.md5(b"old").hexdigest().encode(), False),
        (hashlib.sha1(b"old").hexdigest().encode(), False),
        (b"\x00\xff$:" + hashlib.sha256(b"\x00\xff$:old").hexdigest().encode(), True),
        (b"old", False),
    ],
    ids=["sha256", "md5", "sha", "salted", "plain"],
)
async def test_a_hash_of_emqx_is_replaced_at_the_next_login(stored: bytes, salted: bool) -> None:
    async with managed_node(access=CHEAP) as node:
        node.server.stored_users.put(USERNAME, "ann", EmqxHash.read(stored, salted))
        assert await connect_code(node, "c", "ann", b"wrong", 5) == 0x86
        before = (await node.api.get("/auth_user/ann")).data["password"]
        assert before.startswith("emqx$") and "old" not in before
        assert await connect_code(node, "c", "ann", b"old", 5) == 0
        async with asyncio.timeout(patience(40)):
            while (after := (await node.api.get("/auth_user/ann")).data["password"]).startswith("emqx$"):
                await asyncio.sleep(0)
        assert ScryptHash.parse(after).verify(b"old")
        assert await connect_code(node, "c", "ann", b"old", 5) == 0


async def test_hashing_many_holds_neither_the_loop_nor_a_login() -> None:
    async with managed_node(access=CHEAP) as node:
        await node.api.post("/auth_user", [ALICE])
        many = [{**ALICE, "login": f"u{number}"} for number in range(400)]
        posted = asyncio.ensure_future(node.api.post("/auth_user", many))
        await asyncio.sleep(0)
        assert await connect_code(node, "c", "alice", b"a1", 5) == 0
        assert not posted.done(), "the login came after all of them"
        assert set((await posted).data.values()) == {"ok"}


async def test_users_outlive_the_node(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "node": {"data_dir": str(tmp_path)},
        "durability": {"level": "disk"},
        "access": CHEAP,
    }
    async with managed_node(**config) as node:
        await node.api.post("/auth_user", [ALICE, ROOT])
        await node.api.delete("/auth_user/alice")
    async with managed_node(**config) as node:
        listed = await node.api.get("/auth_user")
        assert [user["login"] for user in listed.data] == ["root1"] and listed.meta["count"] == 1
        assert await connect_code(node, "c", "root1", b"r1", 5) == 0
        assert await connect_code(node, "c", "alice", b"a1", 5) == 0x86


HASHED = {
    "ann": (
        {"password_hash": hashlib.sha256(b"NaCl" + b"old").hexdigest(), "method": "sha256", "salt": "NaCl"},
        b"old",
    ),
    "bea": ({"password_hash": "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"}, b"U*U"),
    "cat": (
        {
            "password_hash": hashlib.pbkdf2_hmac("sha256", b"old", b"NaCl", 10).hex(),
            "method": "pbkdf2",
            "salt": "NaCl",
            "iterations": 10,
        },
        b"old",
    ),
    "eve": ({"password_hash": mosquitto6(b"old"), "method": "mosquitto"}, b"old"),
    "flo": ({"password_hash": mosquitto7(b"old")}, b"old"),
}


async def test_ready_hashes_let_in_and_are_renewed() -> None:
    async with managed_node(access=CHEAP) as node:
        given = [{"login": name, "is_superuser": False, **fields} for name, (fields, _) in HASHED.items()]
        assert (await node.api.post("/auth_user", given)).data == dict.fromkeys(HASHED, "ok")
        for name, (_, password) in HASHED.items():
            assert await connect_code(node, "c", name, b"wrong", 5) == 0x86
            assert not (await node.api.get(f"/auth_user/{name}")).data["password"].startswith("scrypt$")
            assert await connect_code(node, "c", name, password, 4) == 0
            async with asyncio.timeout(patience(40)):
                while not (await node.api.get(f"/auth_user/{name}")).data["password"].startswith("scrypt$"):
                    await asyncio.sleep(0.01)
            assert await connect_code(node, "c", name, password, 5) == 0
            assert await connect_code(node, "c", name, b"wrong", 5) == 0x86


async def test_without_bcrypt_its_hashes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "bcrypt")
    async with managed_node(access=CHEAP) as node:
        bad = {"login": "bea", "password_hash": BCRYPT[b"U*U"], "is_superuser": False}
        refused = await node.api.post("/auth_user", [ALICE, bad])
        assert_refused(refused, 400, 108, f"[1].password_hash: {NO_BCRYPT}")
        assert (await node.api.get("/auth_user")).data == []
        assert (await node.api.post("/auth_user", [ALICE])).code == 0
        refused = await node.api.put("/auth_user/alice", {"password_hash": BCRYPT[b"U*U"], "is_superuser": False})
        assert_refused(refused, 400, 108, f"password_hash: {NO_BCRYPT}")
        assert await connect_code(node, "c", "alice", b"a1", 5) == 0


@pytest.mark.parametrize("version", [4, 5])
async def test_a_stored_bcrypt_hash_waits_for_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    """As after an upgrade that did not name the extra: refused and said, and let in as soon as the package is there."""
    caplog.set_level("INFO", "taipan.broker")
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}, "access": CHEAP}
    bea = {"login": "bea", "password_hash": BCRYPT[b"U*U"], "is_superuser": False}
    async with managed_node(**config) as node:
        assert (await node.api.post("/auth_user", [bea])).code == 0
    assert "stored_hashes_not_verifiable" not in caplog.text
    without(monkeypatch, "bcrypt")
    async with managed_node(**config) as node:
        assert f"stored_hashes_not_verifiable count=1 detail={NO_BCRYPT}" in caplog.text
        for password in (b"U*U", b"wrong"):
            assert await connect_code(node, "c", "bea", password, version) == bad_credentials(version)
        metrics = node.server.metrics
        assert metrics.client_auth_failure == metrics.refusals.snapshot()["bad_username_or_password"] == 2
        [first, second] = [
            line for line in caplog.text.splitlines() if "client_refused client_id=c username=bea" in line
        ]
        for line in (first, second):
            assert line.endswith(f"reason=bad_username_or_password setting=- detail={NO_BCRYPT}")
        monkeypatch.undo()
        assert await connect_code(node, "c", "bea", b"wrong", version) == bad_credentials(version)
        assert await connect_code(node, "c", "bea", b"U*U", version) == 0


@pytest.mark.parametrize("version", [4, 5])
async def test_a_wrong_password_of_an_unknown_user_costs_what_that_of_a_known_one_costs(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    pbkdf2 = hashlib.pbkdf2_hmac

    def counted(name: str, password: bytes, salt: bytes, iterations: int, length: int) -> bytes:
        done.append(iterations)
        return pbkdf2(name, password, salt, iterations, length)

    monkeypatch.setattr(foreign_hashes.hashlib, "pbkdf2_hmac", counted)
    async with managed_node() as node:
        hashed = {"password_hash": "00" * 32, "method": "pbkdf2", "salt": "s", "iterations": 1234}
        assert (await node.api.post("/auth_user", {"login": "ann", "is_superuser": False, **hashed})).code == 0
        for username in ("ann", "nobody"):
            assert await connect_code(node, "c", username, b"x", version) == bad_credentials(version)
        assert done == [1234, 1234]
        # Without that user it is a hash of ours again.
        assert (await node.api.delete("/auth_user/ann")).code == 0
        assert (await node.api.post("/auth_user", {"login": "bea", "password": "p", "is_superuser": False})).code == 0
        assert await connect_code(node, "c", "nobody", b"x", version) == bad_credentials(version)
        assert done == [1234, 1234]


@pytest.mark.parametrize(
    "fields, code, about",
    [
        ({}, 107, "password is missing in [1]"),
        ({"password": "a", "generate": True}, 108, "[1].password: give one of"),
        ({"password": "a", "password_hash": "b"}, 108, "give one of"),
        ({"password_hash": "$2b$31$" + "a" * 53}, 108, "[1].password_hash: bcrypt requires a cost of 4 to 14"),
        ({"password_hash": "00" * 32, "method": "md5"}, 108, "method"),
        (
            {"password_hash": "00" * 32, "method": "pbkdf2", "salt": "s", "iterations": 5_000_000},
            108,
            "[1].password_hash: PBKDF2 requires 1 to 2000000 iterations",
        ),
        (
            {"password_hash": "00" * 32, "method": "scrypt", "salt": "s" * 16, "iterations": 2**18 * 2},
            108,
            "[1].password_hash: scrypt with n=524288",
        ),
        ({"password_hash": "zz", "method": "sha256"}, 108, "[1].password_hash: expected hex or base64"),
        ({"password_hash": "zz"}, 108, "[1].password_hash: expected a hash as taipan hash-password prints it"),
        ({"password": "a", "salt": "b"}, 108, "require password_hash"),
        ({"password": "a", "iterations": 5}, 108, "require password_hash"),
        ({"generate": True, "salt": "b"}, 108, "require password_hash"),
        ({"password": "short", "high_entropy": True}, 108, "at least 22 characters"),
    ],
)
async def test_credentials_that_are_none_refuse_all(fields: dict[str, Any], code: int, about: str) -> None:
    async with managed_node(access=CHEAP) as node:
        bad = {"login": "x", "is_superuser": False, **fields}
        assert_refused(await node.api.post("/auth_user", [ALICE, bad]), 400, code, about)
        assert (await node.api.get("/auth_user")).data == []


async def test_the_node_makes_a_secret_and_shows_it_once() -> None:
    async with managed_node(access=CHEAP) as node:
        api = node.api
        given = [{"login": name, "is_superuser": False, "generate": True} for name in ("m1", "m2")]
        answer = (await api.post("/auth_user", given)).json
        assert answer["data"] == {"m1": "ok", "m2": "ok"}
        secret = answer["passwords"]["m1"]
        assert len(secret) >= 43 and secret != answer["passwords"]["m2"]
        stored = (await api.get("/auth_user/m1")).data["password"]
        assert stored.startswith("random$sha256$") and secret not in stored
        assert await connect_code(node, "c", "m1", secret.encode(), 5) == 0
        assert await connect_code(node, "c", "m1", answer["passwords"]["m2"].encode(), 5) == 0x86
        # One that is there gets none, nor one that is given twice and had a password the first time.
        assert "passwords" not in (await api.post("/auth_user", given)).json
        twice = {"login": "twice", "is_superuser": False}
        answer = (await api.post("/auth_user", [{**twice, "password": "p"}, {**twice, "generate": True}])).json
        assert answer["data"] == {"twice": "ok"} and "passwords" not in answer
        changed = (await api.put("/auth_user/m1", {"generate": True, "is_superuser": False})).json
        assert set(changed) == {"code", "passwords"}
        assert await connect_code(node, "c", "m1", secret.encode(), 5) == 0x86
        assert await connect_code(node, "c", "m1", changed["passwords"]["m1"].encode(), 5) == 0
        own = {"login": "m3", "password": "0123456789abcdefghijkl", "high_entropy": True, "is_superuser": False}
        assert (await api.post("/auth_user", own)).data == {"m3": "ok"}
        assert (await api.get("/auth_user/m3")).data["password"].startswith("random$")


async def test_the_first_user_says_what_it_changes() -> None:
    async with managed_node(access=CHEAP) as node:
        other = await node.client("c", username="somebody", password=b"x")
        answer = (await node.api.post("/auth_user", [ALICE])).json
        assert "access.unknown_user" in answer["warning"] and "1 of the connected clients" in answer["warning"]
        assert "warning" not in (await node.api.post("/auth_user", [ROOT])).json
        assert await connect_code(node, "d", "somebody", b"x", 5) == 0x86
        await other.subscribe("t")


DEFAULT_HASH = hashlib.sha256(b"spublic").hexdigest()


@pytest.mark.parametrize(
    "given",
    [
        {"password": "public"},
        {"password": "emqxsecret"},
        {"password_hash": DEFAULT_HASH, "method": "sha256", "salt": "s"},
    ],
    ids=["public", "emqxsecret", "hash"],
)
async def test_a_published_default_password(given: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """It opens the topics of a user, and everything if that is a superuser."""
    async with managed_node(access=CHEAP) as node:
        api = node.api
        user = {"login": "device", "is_superuser": False, **given}
        assert_refused(await api.post("/auth_user", {**user, "is_superuser": True}), 400, 108, "published default")
        many = [ALICE, {**user, "is_superuser": True}]
        assert_refused(await api.post("/auth_user", many), 400, 108, "superuser device")
        assert (await api.get("/auth_user")).data == [] and "default_secret" not in caplog.text
        answer = (await api.post("/auth_user", [ALICE, user])).json
        assert answer["data"] == {"alice": "ok", "device": "ok"}
        assert "access.unknown_user" in answer["warning"] and answer["warning"].endswith("may know: device")
        assert "default_secret count=1 users=device" in caplog.text
        assert "warning" not in (await api.post("/auth_user", [user])).json, "it existed"
        answer = (await api.post("/auth_clientid", {"clientid": "meter", **given})).json
        assert answer["code"] == 0 and answer["warning"].endswith("may know: meter")
        credentials = {"is_superuser": False, **given}
        assert "warning" in (await api.put("/auth_user/alice", credentials)).json
        assert "warning" in (await api.put("/auth_username/alice", given)).json
        assert_refused(await api.put("/auth_user/alice", {**credentials, "is_superuser": True}), 400, 108)
        assert (await api.post("/auth_user", [ROOT])).json["data"] == {ROOT["login"]: "ok"}
        assert_refused(await api.put(f"/auth_username/{ROOT['login']}", given), 400, 108, "published default")


@pytest.mark.parametrize("version", [4, 5])
async def test_unknown_users_as_anonymous_clients(version: int) -> None:
    """As EMQX 4 has it."""
    async with managed_node(access={**CHEAP, "unknown_user": "anonymous"}) as node:
        assert "warning" not in (await node.api.post("/auth_user", [ALICE])).json
        assert await connect_code(node, "c", "nobody", b"x", version) == 0
        assert await connect_code(node, "c", "alice", b"x", version) == bad_credentials(version)
        assert await connect_code(node, "c", "alice", b"a1", version) == 0
    async with managed_node(access={**CHEAP, "unknown_user": "anonymous"}, zone={"allow_anonymous": False}) as node:
        await node.api.post("/auth_user", [ALICE])
        assert await connect_code(node, "c", "nobody", b"x", version) == bad_credentials(version)


async def test_who_gave_up_can_ask_what_came_of_it() -> None:
    async with managed_node(access=CHEAP) as node:
        api = node.api
        many = [{**ALICE, "login": f"u{number}"} for number in range(300)]
        headers = {"Idempotency-Key": "batch 1"}
        first = asyncio.ensure_future(api.ask("POST", "/auth_user", many, headers=headers))
        async with asyncio.timeout(patience(40)):
            while (await api.get("/auth_user_requests/batch%201")).code:
                await asyncio.sleep(0)
        first.cancel()
        state = (await api.get("/auth_user_requests/batch%201")).data
        assert state["state"] == "running" and state["users"] == 300 and state["done"] < 300
        again = await api.ask("POST", "/auth_user", many, headers=headers)
        assert set(again.data.values()) == {"ok"}, "the second one found users of the first"
        state = (await api.get("/auth_user_requests/batch%201")).data
        assert (state["state"], state["done"], state["data"]) == ("done", 300, again.data)
        assert "access.unknown_user" in state["warning"]
        assert [user["login"] for user in (await api.get("/auth_user")).data] == [user["login"] for user in many]
        assert_refused(await api.ask("POST", "/auth_user", ALICE, headers=headers), 400, 108, "another body")
        assert_refused(await api.get("/auth_user_requests/nothing"), 404, 105, "nothing")
        assert_refused(await api.ask("POST", "/auth_user", ALICE, headers={"Idempotency-Key": "x" * 256}), 400, 108)


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_ten_thousand_ready_hashes_in_one_request() -> None:
    async with managed_node(access={}) as node:
        salted = [(f"u{number}", f"{number:08}") for number in range(10_000)]
        given = [
            {
                "login": name,
                "is_superuser": False,
                "password_hash": hashlib.sha256(f"{salt}p".encode()).hexdigest(),
                "method": "sha256",
                "salt": salt,
            }
            for name, salt in salted
        ]
        assert (await node.api.post("/auth_user", given)).data == dict.fromkeys((name for name, _ in salted), "ok")
        assert node.server.access.authentication.passwords.queue.seconds == 0.05, "something was hashed"
        assert await connect_code(node, "c", "u9999", b"p", 5) == 0
