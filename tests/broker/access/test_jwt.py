"""JwtSource: keys, algorithms, times, claims, and the rules that a token brings."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from taipan.broker.access.jwt.declaration import JwtSettings
from taipan.broker.access.jwt.source import JwtSource
from taipan.broker.access.source import SourceContext
from taipan.broker.config import AccessSettings, ZoneSettings
from taipan.broker.session.client_info import ClientInfo
from tests.support.access import decided
from tests.support.clock import Clock
from tests.support.patience import patience

SECRET = "thirty-two bytes are what it takes, at least, and for HS512 it is sixty-four"
NOW = 1_000_000
RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def pem(key: Any) -> str:
    return str(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def source(clock: Clock | None = None, **settings: Any) -> JwtSource:
    if not any(key in settings for key in ("public_key_file", "jwks_file", "jwks_url")):
        settings.setdefault("secret", SECRET)
    return JwtSource(msgspec.convert(settings, JwtSettings), context(clock or Clock(NOW)))


def context(clock: Clock) -> SourceContext:
    return SourceContext(clock, lambda reason: None, AccessSettings())  # type: ignore[arg-type]


def client(username: str | None = "ann", client_id: str = "c1") -> ClientInfo:
    return ClientInfo("n@h", ZoneSettings(), client_id=client_id, username=username, proved_by="users")


def token(key: Any = SECRET, algorithm: str = "HS256", headers: dict[str, Any] | None = None, **claims: Any) -> bytes:
    return jwt.encode({"sub": "ann", **claims}, key, algorithm, headers).encode()


def result(source: JwtSource, password: bytes | None, who: ClientInfo | None = None) -> str:
    """``""``: let in; ``ignored``; else why not."""
    outcome = source.authenticate(who or client(), password)
    if outcome is None:
        return "ignored"
    return outcome.detail if outcome.reason_code else ""


@pytest.mark.parametrize("password", [None, b"", b"secret", b"a.b.c", b"..", b"a.b", b"\xff.\xff.\xff", b"e30.e30"])
def test_what_is_no_token_is_left_to_others(password: bytes | None) -> None:
    assert result(source(), password) == "ignored"


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_secret(algorithm: str) -> None:
    judge = source(algorithms=[algorithm])
    assert result(judge, token(algorithm=algorithm)) == ""
    assert result(judge, token("another secret of more than enough bytes" * 2, algorithm)).startswith("token_invalid")


def test_secret_in_base64() -> None:
    raw = bytes(range(200, 240))
    import base64

    for written in (base64.b64encode(raw), base64.urlsafe_b64encode(raw).rstrip(b"=")):
        assert result(source(secret=written.decode(), secret_base64=True), token(raw)) == ""
    with pytest.raises(ValueError, match="base64"):
        source(secret="abcde", secret_base64=True)


@pytest.mark.parametrize(
    "key, algorithm",
    [(RSA, "RS256"), (RSA, "RS512"), (RSA, "PS256"), (EC, "ES256"), (ED, "EdDSA")],
    ids=["RS256", "RS512", "PS256", "ES256", "EdDSA"],
)
def test_public_key(tmp_path: Path, key: Any, algorithm: str) -> None:
    file = tmp_path / "key.pem"
    file.write_text(pem(key))
    judge = source(public_key_file=str(file), algorithms=["HS256", algorithm])
    assert result(judge, token(key, algorithm)) == ""
    signed = token(key, algorithm)
    assert result(judge, signed[:-20] + b"A" * 20).startswith("token_invalid")


def test_a_public_key_is_no_secret(tmp_path: Path) -> None:
    """The old trick: HS256, signed with what everybody may know."""
    file = tmp_path / "key.pem"
    file.write_text(pem(RSA))
    judge = source(public_key_file=str(file), algorithms=["HS256", "RS256"])
    import base64
    import hashlib
    import hmac

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    signed = part(b'{"alg":"HS256"}') + b"." + part(b'{"sub":"ann"}')
    mac = hmac.new(file.read_bytes(), signed, hashlib.sha256).digest()
    assert result(judge, signed + b"." + part(mac)) == "no_key_for_this_token"


@pytest.mark.parametrize("algorithm", ["none", "HS384", "XX", None, 5, ["HS256"]])
def test_algorithms_not_allowed(algorithm: Any) -> None:
    import base64

    header = base64.urlsafe_b64encode(json.dumps({"alg": algorithm}).encode()).rstrip(b"=")
    outcome = result(source(algorithms=["HS256"]), header + b".e30.")
    assert outcome in ("token_algorithm_not_allowed", "ignored")
    assert result(source(algorithms=["HS256"]), token(algorithm="HS384")) == "token_algorithm_not_allowed"


def jwks(*keys: tuple[str | None, Any]) -> dict[str, Any]:
    found = []
    for key_id, key in keys:
        algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
        made = algorithm.to_jwk(key.public_key(), as_dict=True)
        found.append({**made, "use": "sig", **({"kid": key_id} if key_id else {})})
    return {"keys": found}


def test_key_set(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(jwks(("one", RSA), ("two", OTHER_RSA), ("three", EC))))
    judge = source(jwks_file=str(file))
    assert result(judge, token(RSA, "RS256", {"kid": "one"})) == ""
    assert result(judge, token(OTHER_RSA, "RS256", {"kid": "two"})) == ""
    assert result(judge, token(RSA, "RS256", {"kid": "two"})).startswith("token_invalid")
    assert result(judge, token(RSA, "RS256", {"kid": "four"})) == "no_key_for_this_token"
    assert result(judge, token(RSA, "RS256")) == "no_key_for_this_token"  # two could be meant
    assert result(judge, token(EC, "ES256")) == ""
    assert result(judge, token()) == "no_key_for_this_token"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": []}', '{"keys": [{"kty": "x"}]}', "5", "[" * 100_000])
def test_no_key_set(tmp_path: Path, text: str) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="not a JWK Set"):
        source(jwks_file=str(file))


def test_keys_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs secret, public_key_file"):
        JwtSource(JwtSettings(), context(Clock()))
    with pytest.raises(ValueError, match="nowhere: No such file"):
        source(public_key_file="nowhere")
    file = tmp_path / "key.pem"
    file.write_text("no key")
    with pytest.raises(ValueError, match="not a public key in PEM format"):
        source(public_key_file=str(file))
    file.write_text(pem(EC))
    with pytest.raises(ValueError, match="none of the algorithms"):
        source(public_key_file=str(file), algorithms=["RS256"])


@pytest.mark.parametrize(
    "claims, why",
    [
        ({}, ""),
        ({"exp": NOW + 1}, ""),
        ({"exp": NOW + 0.5}, ""),
        ({"exp": NOW}, "token_expired"),
        ({"exp": 0}, "token_expired"),
        ({"exp": "2030"}, "token_exp_unreadable"),
        ({"exp": None}, "token_exp_unreadable"),
        ({"nbf": None}, "token_not_valid_yet"),
        ({"exp": True}, "token_exp_unreadable"),
        ({"exp": float("nan")}, "token_exp_unreadable"),
        ({"exp": float("inf")}, "token_exp_unreadable"),
        ({"exp": 10**400}, "token_exp_unreadable"),
        ({"exp": -1}, "token_exp_unreadable"),
        ({"nbf": NOW}, ""),
        ({"nbf": NOW + 1}, "token_not_valid_yet"),
        ({"nbf": [1]}, "token_not_valid_yet"),
        ({"iat": NOW + 500, "aud": "somebody", "iss": "x"}, ""),
    ],
)
def test_times(claims: dict[str, Any], why: str) -> None:
    assert result(source(), token(**claims)) == why


def test_leeway() -> None:
    judge = source(leeway=10)
    assert result(judge, token(exp=NOW - 9, nbf=NOW + 10)) == ""
    assert result(judge, token(exp=NOW - 10)) == "token_expired"
    who = client()
    judge.authenticate(who, token(exp=NOW + 5))
    assert who.token.expires == NOW + 15


@pytest.mark.parametrize(
    "wanted, claims, why",
    [
        ({}, {"sub": "bob"}, ""),
        ({"sub": "%u"}, {}, ""),
        ({"sub": "%u"}, {"sub": "bob"}, "sub"),
        ({"device": "%c"}, {"device": "c1"}, ""),
        ({"device": "%c"}, {"device": "c2"}, "device"),
        ({"device": "%c"}, {}, "device"),
        ({"aud": "mqtt"}, {"aud": "mqtt"}, ""),
        ({"aud": "mqtt"}, {"aud": ["x", "mqtt"]}, ""),
        ({"aud": "mqtt"}, {"aud": "mqtt2"}, "aud"),
        ({"aud": "1"}, {"aud": 1}, "aud"),
        ({"a": "1", "b": "2"}, {"a": "1", "b": "3"}, "b"),
    ],
)
def test_claims(wanted: dict[str, str], claims: dict[str, Any], why: str) -> None:
    assert result(source(verify_claims=wanted), token(**claims)) == (f"token_claim_{why}_differs" if why else "")


def test_an_empty_name_equals_no_claim() -> None:
    assert result(source(username_claim=""), token(sub=""), client(None)) == "token_claim_sub_differs"


def test_the_user_name_of_the_token() -> None:
    who = client(None)
    assert result(source(), token(), who) == "" and who.username == "ann"
    who = client(None)
    assert result(source(username_claim="name", verify_claims={}), token(), who) == "" and who.username is None


def test_token_in_place_of_the_user_name() -> None:
    judge = source(token_from="username")
    who = client(token().decode())
    assert result(judge, b"whatever", who) == "" and who.username == "ann"
    who = client(token("another secret of more than enough bytes").decode())
    assert result(judge, None, who).startswith("token_invalid") and who.username is None
    who = client("ann")
    assert result(judge, token(), who) == "ignored" and who.username == "ann"


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "acl, action, topic, allowed",
    [
        (None, "publish", "t", None),
        ({}, "publish", "t", False),
        ({"pub": []}, "publish", "t", False),
        ({"pub": ["t"]}, "publish", "t", True),
        ({"pub": ["t"]}, "subscribe", "t", False),
        ({"sub": ["t"]}, "subscribe", "t", True),
        ({"sub": ["t"]}, "publish", "t", False),
        ({"all": ["t"]}, "publish", "t", True),
        ({"all": ["t"]}, "subscribe", "t", True),
        ({"sub": ["t/#"]}, "subscribe", "t/+/x", True),
        ({"sub": ["t/+"]}, "subscribe", "t/#", False),
        ({"sub": ["t/+"]}, "subscribe", "$share/g/t/a", True),
        ({"pub": ["%u/%c/#"]}, "publish", "ann/c1/x", True),
        ({"pub": ["%u/#"]}, "publish", "bob/x", False),
        ({"pub": ["eq t/#"]}, "publish", "t/x", False),
    ],
)
def test_rules(acl: dict[str, list[str]] | None, action: str, topic: str, allowed: bool | None) -> None:
    judge = source()
    who = client()
    claims: dict[str, Any] = {} if acl is None else {"acl": acl}
    assert result(judge, token(**claims), who) == ""
    assert decided(judge, who, action, topic) is allowed


@pytest.mark.parametrize(
    "acl", [[], "t", None, {"pub": "t"}, {"pub": [1]}, {"sub": ["a#"]}, {"all": [""]}, {"pub": ["t"] * 1001}]
)
def test_rules_that_cannot_be_read(acl: Any) -> None:
    who = client()
    assert result(source(), token(acl=acl), who).startswith("token_acl_unreadable")
    assert who.token is None


def test_another_claim_and_none() -> None:
    who = client()
    judge = source(acl_claim="mqtt")
    judge.authenticate(who, token(mqtt={"pub": ["t"]}, acl=5))
    assert decided(judge, who, "publish", "t") is True
    who = client()
    judge = source(acl_claim="")
    judge.authenticate(who, token(acl={}))
    assert decided(judge, who, "publish", "t") is None
    assert decided(judge, client(), "publish", "t") is None  # came without a token


def hostile() -> Iterator[bytes]:
    import base64

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    deep = b"[" * 100_000
    yield part(deep) + b".e30.x"
    yield part(b'{"alg":"HS256","kid":' + deep + b"}") + b".e30.x"
    yield part(b'{"alg":"HS256","crit":["x"]}') + b".e30.x"
    yield part(b'{"alg":"HS256","b64":false}') + b"..x"
    yield b"." * 2 + b"x" * 100_000
    for payload in (b"5", b"[]", b"null", b"{", b"", b"\xff"):
        yield jwt.api_jws.encode(payload, SECRET, "HS256").encode()


@pytest.mark.parametrize("password", list(hostile()), ids=lambda password: f"{len(password)}")
def test_hostile_tokens(password: bytes) -> None:
    assert result(source(), password) not in ("",)


# --- keys from a URL -------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_keys_from_a_url() -> None:
    replies: list[Any] = [web.Response(status=500), web.json_response(jwks(("one", RSA)))]

    async def answer(request: web.Request) -> web.Response:
        return replies.pop(0) if replies else web.Response(text="no keys")

    app = web.Application()
    app.router.add_get("/keys", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    judge = source(jwks_url=f"http://127.0.0.1:{runner.addresses[0][1]}/keys")
    url = judge._url
    assert url is not None
    good = token(RSA, "RS256", {"kid": "one"})
    outcome = judge.authenticate(client(), good)
    assert outcome is not None and (outcome.reason_code, outcome.setting) == (0x88, "access.jwt.jwks_url")
    assert not await url.fetch()
    assert result(judge, good) == "no_keys_yet"
    judge.start()  # fetches at once
    async with asyncio.timeout(patience(40)):
        while result(judge, good):
            await asyncio.sleep(0.001)
    judge.retire()
    assert not await url.fetch()
    assert result(judge, good) == ""  # the old keys stay
    assert result(judge, token(OTHER_RSA, "RS256", {"kid": "two"})) == "no_key_for_this_token"
    await runner.cleanup()
    assert not await url.fetch()


@pytest.mark.parametrize(
    "wanted, says, proved, identified",
    [
        ({"sub": "%u"}, "ann", True, False),
        ({"sub": "%u"}, None, True, False),
        ({}, None, True, False),  # the claim is its name
        ({}, "ann", True, False),
        ({}, "boss", False, False),  # nobody compared
        ({"sub": "ann"}, "boss", False, False),
        ({"device": "%c"}, "boss", False, True),
    ],
)
def test_what_a_token_proves(wanted: dict[str, str], says: str | None, proved: bool, identified: bool) -> None:
    outcome = source(verify_claims=wanted).authenticate(client(says), token(device="c1"))
    assert outcome is not None and not outcome.reason_code
    assert (outcome.proved_by == "jwt", outcome.proves_client_id) == (proved, identified)


def test_rules_of_a_token_for_a_name_that_is_not_proved() -> None:
    judge = source(verify_claims={})
    who = client("boss")
    outcome = judge.authenticate(who, token(acl={"all": ["of/%u/#", "to/%c"]}))
    assert outcome is not None
    who.proved_by = outcome.proved_by
    assert decided(judge, who, "publish", "of/boss/x") is False
    assert decided(judge, who, "publish", "to/c1") is True
