"""Banned and Flapping, by a clock that stands still."""

import pytest
from msgspec import Struct, msgpack, structs

from taipan.broker.access import banned as banned_module
from taipan.broker.access import flapping as flapping_module
from taipan.broker.access.banned import CLIENT_ID, PEER_HOST, USERNAME, Ban, Banned, normal
from taipan.broker.access.flapping import Flapping
from taipan.broker.config import ZoneSettings
from taipan.broker.persistence.tables import Tables
from taipan.broker.session.client_info import ClientInfo
from tests.support.clock import Clock


def client(client_id: str = "c", zone: ZoneSettings | None = None, host: str = "::ffff:10.0.0.1") -> ClientInfo:
    return ClientInfo("n@h", zone or ZoneSettings(), client_id=client_id, username="ann", peer_host=host)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def banned(clock: Clock) -> Banned:
    return Banned(Tables(), clock)  # type: ignore[arg-type]


def ban(clock: Clock, kind: str = CLIENT_ID, who: str = "c", seconds: float = 10.0) -> Ban:
    return Ban(kind, who, "me", "why", clock.now(), clock.now() + seconds)


@pytest.mark.parametrize("kind, who", [(CLIENT_ID, "c"), (USERNAME, "ann"), (PEER_HOST, "10.0.0.1")])
def test_find(banned: Banned, clock: Clock, kind: str, who: str) -> None:
    assert banned.find(client()) is None
    banned.put(ban(clock, kind, who))
    found = banned.find(client())
    assert found is not None and found.setting == f"/banned/{kind}/{who}"
    clock.advance(10.0)
    assert banned.find(client()) is None
    banned.sweep(clock.now())
    assert len(banned) == 0 and banned.all() == []


@pytest.mark.parametrize("kind, who", [(CLIENT_ID, "c"), (USERNAME, "ann"), (PEER_HOST, "10.0.0.1")])
def test_only_a_ban_with_kick_ends_sessions(banned: Banned, clock: Clock, kind: str, who: str) -> None:
    ordered: list[Ban] = []
    banned.on_kick.append(ordered.append)
    plain = ban(clock, kind, who)
    kicking = structs.replace(plain, kick=True)
    banned.put(plain)
    assert banned.find(client()) is plain and banned.find_kicking(client()) is None and not banned.any_kicking
    banned.put(kicking)
    assert banned.find_kicking(client()) is kicking and banned.any_kicking
    banned.put(kicking)
    banned.remove(kind, who)
    assert not banned.any_kicking and ordered == [kicking, kicking]
    banned.put(structs.replace(kicking, until=clock.now()))  # over already
    assert banned.find_kicking(client()) is None and len(ordered) == 2
    banned.sweep(clock.now())
    assert not banned.any_kicking and len(banned) == 0


def test_a_ban_with_kick_that_comes_from_another_node(banned: Banned, clock: Clock) -> None:
    ordered: list[Ban] = []
    banned.on_kick.append(ordered.append)
    kicking = structs.replace(ban(clock), kick=True)
    banned._taken("clientid:c", None, kicking)
    assert ordered == [kicking] and banned.any_kicking
    banned._taken("clientid:c", kicking, None)
    assert ordered == [kicking] and not banned.any_kicking


def test_an_import_keeps_the_kick_that_a_file_does_not_have(banned: Banned, clock: Clock) -> None:
    plain = ban(clock)
    assert banned.as_imported(plain, False) is plain
    banned.put(structs.replace(plain, kick=True))
    assert banned.as_imported(plain, False) == structs.replace(plain, kick=True)
    assert banned.as_imported(plain, True) is plain


def test_rows_of_nodes_without_kick(clock: Clock) -> None:
    """An older node writes six members; it reads the first six of ours."""

    class Older(Struct, array_like=True):
        kind: str
        who: str
        by: str
        reason: str
        at: float
        until: float

    kicking = structs.replace(ban(clock), kick=True)
    older = msgpack.decode(msgpack.encode(kicking), type=Older)
    assert older.until == kicking.until
    assert msgpack.decode(msgpack.encode(older), type=Ban) == ban(clock)


def test_a_sweep_leaves_what_was_prolonged(banned: Banned, clock: Clock) -> None:
    banned.put(ban(clock, seconds=5.0))
    banned.put(ban(clock, seconds=50.0))
    clock.advance(10.0)
    banned.sweep(clock.now())
    assert banned.find(client()) is not None
    assert banned.remove(CLIENT_ID, "c") and not banned.remove(CLIENT_ID, "c")


def test_what_is_remembered_of_old_ends_is_bounded(
    banned: Banned, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(banned_module, "_EXPIRED_PER_SWEEP", 10)
    for number in range(200):
        banned.put(ban(clock, seconds=1000.0 + number))
    assert len(banned._ends) <= 12
    clock.advance(1100.0)
    banned.sweep(clock.now())
    assert banned.find(client()) is not None
    clock.advance(200.0)
    banned.sweep(clock.now())
    assert len(banned) == 0


def test_normal() -> None:
    assert normal(PEER_HOST, "::FFFF:10.0.0.1") == "10.0.0.1" and normal(PEER_HOST, "FE80::1") == "fe80::1"
    assert normal(PEER_HOST, "fe80::1%eth0") == "fe80::1"  # as the address of a client is compared
    assert normal(CLIENT_ID, "::1x") == "::1x" and normal(USERNAME, "50%") == "50%"
    for kind, who in ((PEER_HOST, "1.2"), (CLIENT_ID, ""), (PEER_HOST, "")):
        with pytest.raises(ValueError):
            normal(kind, who)


def test_flapping_is_counted_in_windows(banned: Banned, clock: Clock) -> None:
    flapping = Flapping(banned, clock, max_clients=2)  # type: ignore[arg-type]
    zone = ZoneSettings(flapping_threshold=2, flapping_window=10.0, flapping_ban=5.0)
    flapping.client_disconnected(client(), "normal")
    assert len(flapping) == 0
    flapping.client_disconnected(client(zone=zone), "normal")
    clock.advance(10.0)
    flapping.client_disconnected(client(zone=zone), "normal")
    flapping.client_disconnected(client(zone=zone), "server_shutting_down")
    assert len(banned) == 0
    flapping.client_disconnected(client(zone=zone), "tcp_closed")
    assert banned.find(client()) is not None and len(flapping) == 0
    for number in range(5):
        flapping.client_disconnected(client(f"c{number}", zone), "normal")
    assert len(flapping) == 2


def test_long_identifiers_do_not_fill_the_memory_of_flapping(
    banned: Banned, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flapping_module, "_MAX_NAME_CHARACTERS", 100)
    flapping = Flapping(banned, clock)  # type: ignore[arg-type]
    zone = ZoneSettings(flapping_threshold=3, flapping_window=10.0, flapping_ban=5.0)
    for _ in range(2):
        for name in ("a" * 60, "b" * 60):  # each pushes the other out
            flapping.client_disconnected(client(name, zone), "normal")
    assert len(flapping) == 1 and len(banned) == 0
    for _ in range(2):
        flapping.client_disconnected(client("b" * 60, zone), "normal")
    assert len(flapping) == 0 and banned.find(client("b" * 60)) is not None
    for name in ("c" * 50, "d" * 50):
        flapping.client_disconnected(client(name, zone), "normal")
    assert len(flapping) == 2
