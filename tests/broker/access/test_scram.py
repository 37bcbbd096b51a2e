"""SCRAM-SHA-256 against a client of our own, RFC 7677's example, and whatever else may come."""

import base64
import hashlib
import hmac
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.access.enhanced import CONTINUE, FAILURE, SUCCESS, AuthStep
from taipan.broker.access.scram import FakeVerifiers, ScramExchange, ScramSha256, ScramVerifier
from taipan.broker.access.users import User
from taipan.broker.config import ZoneSettings
from taipan.broker.session.client_info import ClientInfo
from tests.support.scram_client import ScramClient

ALICE = User("alice", scram=ScramVerifier.create("wonderland"), is_superuser=True)
COMMA = User("a,b=c", scram=ScramVerifier.create("pencil"))
PLAIN = User("plain")
USERS = {user.username: user for user in (ALICE, COMMA, PLAIN)}
assert ALICE.scram is not None
FAKES = FakeVerifiers([ALICE.scram])


def start(username: str | None = None, nonce: str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF") -> ScramExchange:
    method = ScramSha256(lambda client, name: USERS.get(name), FAKES, lambda: nonce)
    return method.start(ClientInfo("n@h", ZoneSettings(), client_id="c", username=username))


def run(client: ScramClient, exchange: ScramExchange | None = None) -> AuthStep:
    exchange = exchange or start()
    step = exchange.step(client.first())
    if step.status != CONTINUE:
        return step
    return exchange.step(client.final(step.data))


def test_success() -> None:
    """AUTH 0x18 with server-first, then success with the server's signature."""
    client = ScramClient("alice", "wonderland")
    step = run(client)
    assert step.status == SUCCESS
    assert (step.username, step.is_superuser, step.reason_code) == ("alice", True, 0)
    assert client.verify(step.data)


def test_rfc_7677_example() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    user = User("user", scram=ScramVerifier(4096, salt, stored, hmac.digest(salted, b"Server Key", "sha256")))
    method = ScramSha256(lambda client, name: user, FAKES, lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    exchange = method.start(ClientInfo("n@h", ZoneSettings()))
    step = exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert step.data == (b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    step = exchange.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert step.status == SUCCESS
    assert step.data == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_connect_without_data_is_asked_for_it() -> None:
    exchange = start()
    step = exchange.step(None)
    assert (step.status, step.data) == (CONTINUE, b"")
    assert run(ScramClient("alice", "wonderland"), exchange).status == SUCCESS


@pytest.mark.parametrize("gs2", ["n,,", "y,,", "n,a=alice,"])
def test_gs2_headers(gs2: str) -> None:
    assert run(ScramClient("alice", "wonderland", gs2=gs2)).status == SUCCESS


def test_escaped_user_name() -> None:
    step = run(ScramClient("a,b=c", "pencil"))
    assert (step.status, step.username, step.is_superuser) == (SUCCESS, "a,b=c", False)


def test_user_name_is_prepared() -> None:
    assert run(ScramClient("al\u00adice", "wonderland")).username == "alice"


def test_extensions_are_let_be() -> None:
    exchange = start()
    client = ScramClient("alice", "wonderland")
    client._bare += ",x=something"
    assert run(client, exchange).status == SUCCESS


@pytest.mark.parametrize("username, password", [("alice", "Wonderland"), ("alice", ""), ("bob", "x"), ("plain", "x")])
def test_wrong_password_and_unknown_user_look_alike(username: str, password: str) -> None:
    """Failure is 0x87, in CONNACK and in DISCONNECT alike."""
    step = run(ScramClient(username, password))
    assert (step.status, step.reason_code, step.data) == (FAILURE, 0x87, b"e=invalid-proof")
    assert step.username is None


def test_unknown_user_gets_a_steady_salt() -> None:
    first = start().step(ScramClient("bob", "x").first()).data
    assert start().step(ScramClient("bob", "y").first()).data == first
    assert start().step(ScramClient("eve", "x").first()).data != first
    known = start().step(ScramClient("alice", "x").first()).data
    shape = re.compile(rb"r=[^,]+,s=[A-Za-z0-9+/=]{24},i=4096")
    assert shape.fullmatch(first)
    assert shape.fullmatch(known)
    # Another process with the same users asks the same.
    assert ALICE.scram is not None
    assert FakeVerifiers([ALICE.scram]).get("bob").salt == FAKES.get("bob").salt
    assert FakeVerifiers([]).get("bob").salt != FAKES.get("bob").salt


def test_a_connect_that_names_somebody_else_is_refused() -> None:
    assert run(ScramClient("alice", "wonderland"), start("alice")).status == SUCCESS
    assert run(ScramClient("alice", "wonderland"), start("bob")).status == FAILURE


@pytest.mark.parametrize(
    "first, error",
    [
        (b"", b"other-error"),
        (b"p=tls-unique,,n=alice,r=abc", b"channel-binding-not-supported"),
        (b"x,,n=alice,r=abc", b"other-error"),
        (b"n,b=alice,n=alice,r=abc", b"other-error"),
        (b"n,a=bob,n=alice,r=abc", b"other-error"),
        (b"n,,m=ext,n=alice,r=abc", b"extensions-not-supported"),
        (b"n,,n=alice", b"other-error"),
        (b"n,,r=abc,n=alice", b"other-error"),
        (b"n,,n=alice,r=", b"other-error"),
        (b"n,,n=alice,r=a\x7fb", b"other-error"),
        (b"n,,n=alice,r=" + b"a" * 1025, b"other-error"),
        (b"n,,n=alice,r=abc,", b"other-error"),
        (b"n,,n=alice,r=abc,x", b"other-error"),
        (b"n,,n=,r=abc", b"invalid-username-encoding"),
        (b"n,,n=al=ice,r=abc", b"invalid-username-encoding"),
        (b"n,,n=al=2cice,r=abc", b"invalid-username-encoding"),
        (b"n,,n=al\x07ice,r=abc", b"invalid-username-encoding"),
        (b"n,,n=al\xffice,r=abc", b"invalid-encoding"),
        (b"n,,n=" + b"a" * 9000 + b",r=abc", b"other-error"),
    ],
)
def test_bad_client_first(first: bytes, error: bytes) -> None:
    exchange = start()
    step = exchange.step(first)
    assert (step.status, step.reason_code, step.data) == (FAILURE, 0x87, b"e=" + error)
    assert exchange.step(ScramClient("alice", "wonderland").first()).status == FAILURE


@pytest.mark.parametrize(
    "change, error",
    [
        (lambda text: text.replace(b"c=biws", b"c=eSws"), b"channel-bindings-dont-match"),
        (lambda text: text.replace(b"c=biws", b"c="), b"channel-bindings-dont-match"),
        (lambda text: text.replace(b"c=biws", b"c=\xc3\xa9"), b"channel-bindings-dont-match"),
        (lambda text: text.replace(b"r=fyko", b"r=fykO"), b"other-error"),
        (lambda text: text.replace(b"r=fyko", b"r=\xc3\xa9"), b"other-error"),
        (lambda text: text.replace(b",p=", b",x=1,p="), b"invalid-proof"),
        (lambda text: text.replace(b",p=", b",x,p="), b"other-error"),
        (lambda text: text + b",x=1", b"other-error"),
        (lambda text: text[: text.index(b",p=")], b"other-error"),
        (lambda text: text[: text.index(b",p=")] + b",p=AAAA", b"invalid-proof"),
        (lambda text: text[: text.index(b",p=")] + b",p=?", b"invalid-proof"),
        (lambda text: text.replace(b"c=biws,r=", b"r="), b"other-error"),
        (lambda text: b"", b"other-error"),
        (lambda text: b"\xff", b"invalid-encoding"),
        (lambda text: None, b"other-error"),
    ],
)
def test_bad_client_final(change, error: bytes) -> None:  # type: ignore[no-untyped-def]
    exchange = start()
    client = ScramClient("alice", "wonderland")
    good = client.final(exchange.step(client.first()).data)
    step = exchange.step(change(good))
    assert (step.status, step.data) == (FAILURE, b"e=" + error)
    # One try for each exchange: what would have been right comes too late.
    assert exchange.step(good).status == FAILURE


def test_nothing_comes_after_success() -> None:
    exchange = start()
    client = ScramClient("alice", "wonderland")
    final = client.final(exchange.step(client.first()).data)
    assert exchange.step(final).status == SUCCESS
    assert exchange.step(final).status == FAILURE


def test_a_proof_fits_one_exchange_only() -> None:
    client = ScramClient("alice", "wonderland")
    final = client.final(start().step(client.first()).data)
    other = start(nonce="another")
    other.step(client.first())
    assert other.step(final).status == FAILURE


ANYTHING = st.none() | st.binary(max_size=60) | st.text("n,=arcp25CD", max_size=40).map(str.encode)


@given(st.lists(ANYTHING, max_size=4))
def test_any_bytes_end_in_a_step(messages: list[bytes | None]) -> None:
    exchange = start()
    for message in messages:
        assert exchange.step(message).status in (CONTINUE, FAILURE)


def test_verifier_is_written_and_read_back() -> None:
    verifier = ScramVerifier.create("pass\u00adword")
    again = ScramVerifier.parse(str(verifier))
    assert (again.iterations, again.salt) == (4096, verifier.salt)
    assert (again.stored_key, again.server_key) == (verifier.stored_key, verifier.server_key)


GOOD = str(ScramVerifier.create("x"))


@pytest.mark.parametrize(
    "text",
    ["", "x", GOOD.replace("256$4096", "256$4095"), GOOD.replace("256$4096", "256$999999999"), GOOD + "A", GOOD[:-8],
     GOOD.replace("SCRAM-SHA-256", "SCRAM-SHA-1"), re.sub(":[^$]+", ":AAAA", GOOD, count=1),
     GOOD.replace(":", ":\u00e9")],
)  # fmt: skip
def test_unreadable_verifiers(text: str) -> None:
    with pytest.raises(ValueError):
        ScramVerifier.parse(text)
