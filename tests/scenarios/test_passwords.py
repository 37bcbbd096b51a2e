"""Passwords over real sockets: those that wait, those that guess, and those that need no slow hash."""

import asyncio
import threading
import time
from typing import Any

import pytest

from taipan.broker.access.hash_costs import HashCosts
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.random_secret import RandomSecretHash, generate
from taipan.broker.access.stored.users import USERNAME
from taipan.broker.access.users import User
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Auth, Connack, Connect
from taipan.broker.session.client_info import ClientInfo
from tests.support.clients import Clients, StartClients, tcp, v5
from tests.support.peer import TIMEOUT, Peer
from tests.support.reason_codes import bad_credentials
from tests.support.scram_client import ScramClient
from tests.support.waiting import until

from .test_enhanced_authentication import METHOD, verifier

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Slow:
    """A source of users whose passwords, ``right``, verify when the test says so."""

    name = "slow"
    has_users = True
    has_scram = False
    fast = False
    outdated = False
    fingerprint = b"slow"

    def __init__(self) -> None:
        self.costs = HashCosts()
        self.open = threading.Event()
        self.asked = 0

    def verify(self, password: bytes) -> bool:
        self.asked += 1
        assert self.open.wait(TIMEOUT)
        return password == b"right"

    def lookup(self, client: ClientInfo, username: str) -> User | None:
        return User(username, self) if username.startswith("u") else None


def with_slow(clients: Clients) -> Slow:
    slow = Slow()
    clients.server.access.authentication.users.append(slow)
    return slow


async def ask(clients: Clients, username: str, password: bytes, client_id: str = "") -> Peer:
    """Sends CONNECT and does not wait for the answer."""
    peer = await clients.open()
    await peer.send(Connect(clients.version, client_id or clients.name(), username=username, password=password))
    return peer


async def code_of(peer: Peer, timeout: float = TIMEOUT) -> int:
    return (await peer.expect(Connack, timeout=timeout)).reason_code


async def test_a_complete_connect_is_not_called_incomplete(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"idle_timeout": 10}, access={"hash_threads": 1})
    slow = with_slow(clients)
    peers = [await ask(clients, f"u{number}", b"right") for number in range(5)]
    await until(lambda: len(clients.server.access.authentication.passwords.queue) == 3)
    for _ in range(5):
        await clients.pass_time(11)
    assert "idle_timeout" not in clients.server.metrics.refusals.snapshot()
    slow.open.set()
    assert [await code_of(peer) for peer in peers] == [0] * 5


async def test_nothing_is_hashed_for_who_has_left(clients_of: StartClients) -> None:
    clients = await clients_of(access={"hash_threads": 1})
    slow = with_slow(clients)
    peers = [await ask(clients, f"u{number}", b"right") for number in range(40)]
    queue = clients.server.access.authentication.passwords.queue
    await until(lambda: len(queue) == 38)
    for peer in peers[2:39]:
        await peer.close()
    await until(lambda: len(queue) == 1)
    slow.open.set()
    assert await code_of(peers[39]) == 0
    assert slow.asked == 3


async def test_what_was_verified_for_who_has_left_stays_known(clients_of: StartClients) -> None:
    clients = await clients_of(access={"hash_threads": 1})
    slow = with_slow(clients)
    peer = await ask(clients, "u", b"right")
    await until(lambda: slow.asked)
    await peer.close()
    await until(lambda: not clients.server.connections)
    slow.open.set()
    await until(lambda: len(clients.server.access.authentication.passwords.verified))
    slow.open.clear()
    assert await code_of(await ask(clients, "u", b"right")) == 0
    assert slow.asked == 1


@tcp
async def test_a_random_secret_needs_no_slow_hash(clients_of: StartClients) -> None:
    clients = await clients_of(access={"hash_threads": 1})
    slow = with_slow(clients)
    secrets = [generate() for _ in range(50)]
    for number, secret in enumerate(secrets):
        stored = RandomSecretHash.create(secret.encode())
        clients.server.stored_users.put(USERNAME, f"device{number}", stored)
    busy = [await ask(clients, f"u{number}", b"right") for number in range(5)]  # the thread has enough to do
    await until(lambda: slow.asked)
    for number, secret in enumerate(secrets):
        assert await code_of(await ask(clients, f"device{number}", secret.encode())) == 0
    assert slow.asked == 1
    # A wrong one takes as long as that of any other name.
    guess = await ask(clients, "device0", generate().encode())
    with pytest.raises(TimeoutError):
        await guess.receive(0.2)
    slow.open.set()
    assert await code_of(guess) == bad_credentials(clients.version)
    assert [await code_of(peer) for peer in busy] == [0] * 5


USERS = [
    {"username": name, "password_hash": str(ScryptHash.create(b"secret", n=16))} for name in ("ann", "bob", "carl")
]


@tcp
async def test_guesses_are_slowed_and_the_right_ones_come_in(clients_of: StartClients) -> None:
    """From the address of the attacker, for the name that is attacked; who was known before waits for nobody."""
    clients = await clients_of(access={"users": USERS, "hash_cost": 10, "guess_delay": 1.0})
    assert await code_of(await ask(clients, "bob", b"secret")) == 0
    for number in range(15):
        assert await code_of(await ask(clients, "ann", b"%d" % number)) == bad_credentials(clients.version)
    guesses = [await ask(clients, "ann", b"more %d" % number) for number in range(20)]
    begun = time.monotonic()
    # Known from this address: before the first guess is answered.
    known = asyncio.ensure_future(code_of(await ask(clients, "bob", b"secret")))
    first = asyncio.ensure_future(code_of(guesses.pop(0)))
    done, _ = await asyncio.wait([known, first], return_when=asyncio.FIRST_COMPLETED)
    assert known in done and await known == 0
    right = await ask(clients, "ann", b"secret")
    other = await ask(clients, "carl", b"secret")
    assert await code_of(other) == 0 and await code_of(right) == 0
    assert time.monotonic() - begun > 1.0
    for guess in guesses:
        assert await code_of(guess) == bad_credentials(clients.version)
    assert await first == bad_credentials(clients.version)
    assert time.monotonic() - begun > 19 * 0.1
    assert clients.server.metrics.refusals.snapshot()["password_attempt_held"] >= 20
    # ann is known now, and neither silence nor an answer comes sooner for her guesses than for her.
    assert await code_of(await ask(clients, "ann", b"secret")) == 0


@tcp
async def test_guesses_at_a_name_that_was_verified_before_are_slowed_too(clients_of: StartClients) -> None:
    """Though it could be told at once that they are wrong; the right one waits as they do, and gets in."""
    clients = await clients_of(access={"users": USERS, "hash_cost": 10, "guess_delay": 0.6})
    assert await code_of(await ask(clients, "ann", b"secret")) == 0
    for number in range(14):
        assert await code_of(await ask(clients, "ann", b"%d" % number)) == bad_credentials(clients.version)
    begun = time.monotonic()
    assert await code_of(await ask(clients, "ann", b"secret")) == 0
    assert time.monotonic() - begun > 0.5


@tcp
async def test_who_guesses_and_does_not_wait_is_counted(clients_of: StartClients) -> None:
    clients = await clients_of(access={"users": USERS, "hash_cost": 10, "guess_delay": 0.6})
    assert await code_of(await ask(clients, "ann", b"secret")) == 0
    for number in range(14):
        peer = await ask(clients, "ann", b"%d" % number)
        await until(lambda seen=number + 2: clients.server.metrics.client_connect == seen)
        peer.abort()
    await until(lambda: len(clients.server.connections) == 1)
    begun = time.monotonic()
    assert await code_of(await ask(clients, "ann", b"secret")) == 0
    assert time.monotonic() - begun > 0.5


@v5
@tcp
async def test_guesses_by_scram_are_slowed(clients_of: StartClients) -> None:
    users = [{"username": "ann", "scram": verifier("secret")}]
    clients = await clients_of(access={"users": users, "guess_delay": 0.5, "hash_cost": 10}, zone={"idle_timeout": 10})

    async def attempt(password: str) -> int:
        peer = await clients.open()
        scram = ScramClient("ann", password)
        properties: dict[int, Any] = {c.AUTHENTICATION_METHOD: METHOD, c.AUTHENTICATION_DATA: scram.first()}
        await peer.send(Connect(5, clients.name(), properties=properties))
        challenge = await peer.expect(Auth, reason_code=0x18)
        final = scram.final(challenge.properties[c.AUTHENTICATION_DATA])
        await peer.auth(0x18, {c.AUTHENTICATION_METHOD: METHOD, c.AUTHENTICATION_DATA: final})
        return await code_of(peer)

    for _ in range(14):
        assert await attempt("guess") == 0x87
    begun = time.monotonic()
    assert await attempt("secret") == 0
    assert time.monotonic() - begun > 0.4
    held = clients.server.metrics.refusals.snapshot()["password_attempt_held"]
    assert await attempt("secret") == 0  # known from here now
    assert clients.server.metrics.refusals.snapshot()["password_attempt_held"] == held
