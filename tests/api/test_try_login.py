"""/access/try_login with a certificate and with SCRAM: its verdict is that of a real login with the same."""

import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.scram import ScramVerifier
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Auth, Connack, Connect
from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.certificates import Certificates
from tests.support.peer import Closed, Peer
from tests.support.scram_client import ScramClient

pytestmark = pytest.mark.asyncio

METHOD = "SCRAM-SHA-256"
Issued = tuple[str, str]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path)
    made.issue("localhost")
    return made


def secure(certificates: Certificates, **tls: Any) -> dict[str, Any]:
    """A listener that asks for certificates."""
    tls = {"cafile": certificates.ca, "verify": "required", "peer_cert_as_username": "cn", **tls}
    return {"type": "ssl", "tls": msgspec.to_builtins(certificates.settings(**tls))}


def pem(issued: Issued) -> str:
    return Path(issued[0]).read_text(encoding="ascii")


async def tried(node: ManagedNode, **body: Any) -> Any:
    reply = await node.api.post("/access/try_login", body)
    assert reply.code == 0, reply.text
    return reply.data


async def came_in(
    node: ManagedNode, certificates: Certificates, issued: Issued | None, clientid: str = "c", **connect: Any
) -> tuple[int | None, str | None]:
    """The Reason Code of a real CONNECT over TLS, ``None`` where the handshake fails; and the client's user name."""
    context = ssl.create_default_context(cafile=certificates.ca)
    if issued is not None:
        context.load_cert_chain(*issued)
    peer = Peer(node.address("ssl"), 5, context)
    try:
        await peer.connect(clientid, expect=None, **connect)
    except (OSError, Closed):
        peer.abort()
        return None, None
    channel = node.server.context.channels.get(clientid)
    name = None if channel is None else channel.client.username
    if peer.connack.reason_code == 0:
        await peer.disconnect()
    peer.abort()
    return peer.connack.reason_code, name


async def both_say(
    node: ManagedNode, certificates: Certificates, issued: Issued | None, allowed: bool, **body: Any
) -> Any:
    """What is told of a certificate, after it was seen to be so for a client that shows it."""
    code, name = await came_in(node, certificates, issued, **body)
    shown = {} if issued is None else {"certificate": pem(issued)}
    told = await tried(node, listener="mqtt:ssl:ssl-0", clientid="c", **shown, **body)
    assert (told["allowed"], code == 0) == (allowed, allowed), told
    if allowed:
        assert told["username"] == name
    return told


# --------------------------------------------------------------------------- certificates


@pytest.mark.parametrize("min_version", ["1.2", "1.3"])
async def test_a_certificate_is_judged_as_the_listener_judges_it(certificates: Certificates, min_version: str) -> None:
    good = certificates.issue("device-1")
    expired = certificates.issue("device-2", expired=True)
    revoked = certificates.issue("device-3")
    crl = certificates.revoke("device-3")
    elsewhere = certificates.directory / "other"
    elsewhere.mkdir()
    foreign = Certificates(elsewhere).issue("device-1")
    listener = secure(certificates, crlfile=crl, min_version=min_version)
    async with managed_node(listeners=[listener], zone={"allow_anonymous": False}) as node:
        told = await both_say(node, certificates, good, True)
        assert (told["username"], told["proved_by"], told["clientid"]) == ("device-1", "certificate", "c")
        assert told["steps"][0]["detail"].startswith("subject CN=device-1,OU=Plant,O=Example\\, Inc.; ")
        assert "revocation by tls.crlfile" in told["steps"][0]["detail"]
        assert "private key was not checked" in told["steps"][0]["detail"]
        assert [each["authenticator"] for each in told["steps"][:2]] == ["tls", "tls"]
        for issued, setting, reason in (
            (expired, "tls.verify", "certificate has expired"),
            (revoked, "tls.crlfile", "certificate revoked"),
            (foreign, "tls.cafile", ""),
            (None, "tls.verify", "no client certificate"),
        ):
            told = await both_say(node, certificates, issued, False)
            assert (told["setting"], told["reason_code"]) == (setting, 0x87), told
            assert reason in told["reason"] and told["reason"]
            assert [each["authenticator"] for each in told["steps"]] == ["tls"]
        refused = node.server.listeners[0].refused
        assert refused["tls_certificate"] == 4  # the real ones, and no trial


async def test_an_authority_between(certificates: Certificates) -> None:
    """Shown with the certificate it is taken, without it the issuer is unknown."""
    above = ec.generate_private_key(ec.SECP256R1())
    builder = certificates._builder(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Between")]),
        above.public_key(), certificates.now - (day := certificates.now.resolution * 86_400_000_000),
        certificates.now + day,
    )  # fmt: skip
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    between = builder.sign(certificates._key, hashes.SHA256())
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "far")]))
        .issuer_name(between.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(certificates.now - day)
        .not_valid_after(certificates.now + day)
        .sign(above, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    alone, whole = (
        certificates._write(f"{name}.pem", b"".join(each.public_bytes(encoding) for each in shown))
        for name, shown in (("alone", [leaf]), ("whole", [leaf, between]))
    )
    file = certificates._write("far.key", private)
    async with managed_node(listeners=[secure(certificates)]) as node:
        told = await both_say(node, certificates, (whole, file), True)
        assert told["username"] == "far"
        told = await both_say(node, certificates, (alone, file), False)
        assert told["setting"] == "tls.cafile"


SUBJECTS = [
    [("COMMON_NAME", "pump")],
    [("ORGANIZATION_NAME", "Ex, + <mple>"), ("COMMON_NAME", ' "spaced" ')],
    [("COMMON_NAME", "one"), ("COMMON_NAME", "two")],
    [("EMAIL_ADDRESS", "a@b.c"), ("SERIAL_NUMBER", "5"), ("USER_ID", "u"), ("DOMAIN_COMPONENT", "dc")],
    [("COMMON_NAME", "größe-日本")],
    [],
]


@pytest.mark.parametrize("identity", ["cn", "dn", ""])
async def test_the_name_is_that_of_a_real_login(certificates: Certificates, identity: str) -> None:
    listener = secure(certificates, peer_cert_as_username=identity)
    async with managed_node(listeners=[listener], zone={"allow_anonymous": True}) as node:
        for number, subject in enumerate(SUBJECTS):
            name = x509.Name([x509.NameAttribute(getattr(NameOID, kind), text) for kind, text in subject])
            issued = certificates.issue("x", subject=name, file=f"subject-{number}")
            told = await both_say(node, certificates, issued, True)
            assert (told["proved_by"] == "certificate") is (told["username"] is not None)
            assert told["steps"][1]["setting"] == "tls.peer_cert_as_username" or not subject


async def test_an_optional_certificate_and_a_password_beside_it(certificates: Certificates) -> None:
    users = [{"username": "ann", "password_hash": str(ScryptHash.create(b"right", n=16))}]
    issued = certificates.issue("device-1")
    listener = secure(certificates, verify="optional", peer_cert_as_username="")
    async with managed_node(listeners=[listener], access={"users": users}) as node:
        for shown in (issued, None):
            for password, allowed in (("right", True), ("wrong", False)):
                code, _ = await came_in(node, certificates, shown, username="ann", password=password.encode())
                extra = {} if shown is None else {"certificate": pem(shown)}
                told = await tried(
                    node, listener="mqtt:ssl:ssl-0", clientid="c", username="ann", password=password, **extra
                )
                assert (told["allowed"], told["reason_code"]) == (allowed, code)
                assert told["proved_by"] == ("configuration" if allowed else "")


async def test_bans_and_superusers_by_the_name_of_the_certificate(certificates: Certificates) -> None:
    users = [{"username": "device-1", "password_hash": str(ScryptHash.create(b"x", n=16)), "is_superuser": True}]
    issued = certificates.issue("device-1")
    async with managed_node(
        listeners=[{"type": "tcp"}, secure(certificates)],
        access={"users": users},
        zone={"use_username_as_client_id": True},
    ) as node:
        # Without a listener it is shown to the one that asks for it; the name of CONNECT does not count.
        told = await tried(node, certificate=pem(issued), username="somebody")
        assert (told["allowed"], told["is_superuser"], told["username"], told["clientid"]) == (
            True, True, "device-1", "device-1",
        )  # fmt: skip
        assert (await node.api.post("/banned", {"as": "username", "who": "device-1"})).code == 0
        told = await tried(node, certificate=pem(issued))
        assert (told["allowed"], told["setting"]) == (False, "/banned/username/device-1")
        code, _ = await came_in(node, certificates, issued)
        assert code == told["reason_code"]


async def test_a_certificate_that_is_not_at_hand(certificates: Certificates) -> None:
    listeners = [{"type": "tcp"}, secure(certificates)]
    async with managed_node(listeners=listeners) as node:
        told = await tried(node, cert_common_name="device-9")
        assert (told["allowed"], told["username"], told["proved_by"]) == (True, "device-9", "certificate")
        assert "not checked" in told["steps"][0]["detail"]
        told = await tried(node, cert_subject="CN=device-9")  # "cn" takes none from it
        assert told["username"] is None and "no single name" in told["steps"][1]["detail"]


async def test_what_is_no_certificate(certificates: Certificates) -> None:
    issued = certificates.issue("device-1")
    good = pem(issued)
    key = Path(issued[1]).read_text(encoding="ascii")
    cut = good[: len(good) // 2] + "\n-----END CERTIFICATE-----\n"
    wrongs: list[tuple[dict[str, Any], str, str]] = [
        ({"certificate": ""}, "certificate", "no readable PEM certificate"),
        ({"certificate": "nonsense"}, "certificate", "no readable PEM certificate"),
        ({"certificate": "\0\u202e<b>"}, "certificate", "no readable PEM certificate"),
        ({"certificate": cut}, "certificate", "no readable PEM certificate"),
        ({"certificate": key}, "certificate", "private key"),
        ({"certificate": good + key}, "certificate", "private key"),
        ({"certificate": good * 200}, "certificate", "longer than"),
        ({"certificate": 5}, "certificate", ""),
        ({"certificate": good, "cert_common_name": "x"}, "certificate", "either"),
        ({"certificate": good, "listener": "mqtt:tcp:tcp-0"}, "certificate", "has no TLS"),
        ({"cert_common_name": "x", "listener": "mqtt:tcp:tcp-0"}, "cert_common_name", "asks for no certificate"),
        ({"cert_common_name": ""}, "cert_common_name", "empty"),
        ({"cert_subject": "\0"}, "cert_subject", "no client"),
    ]
    async with managed_node(listeners=[{"type": "tcp"}, secure(certificates)]) as node:
        for body, key_, text in wrongs:
            reply = await node.api.post("/access/try_login", body)
            assert_refused(reply, 400, 108)
            assert key_ in reply.json["message"] and text in reply.json["message"], reply.text
            assert "BEGIN" not in reply.text.replace("-----BEGIN CERTIFICATE-----", "")
    async with managed_node() as node:
        reply = await node.api.post("/access/try_login", {"certificate": good})
        assert_refused(reply, 400, 108)
        assert "no listener asks for certificates" in reply.json["message"]


async def test_a_listener_that_does_not_run_and_one_that_asks_for_none(certificates: Certificates) -> None:
    issued = certificates.issue("device-1")
    quiet = {"type": "ssl", "tls": msgspec.to_builtins(certificates.settings())}
    async with managed_node(listeners=[quiet]) as node:
        told = await tried(node, listener="mqtt:ssl:ssl-0", certificate=pem(issued))
        assert told["allowed"] is True and "asks for no certificate" in told["steps"][0]["detail"]


# -------------------------------------------------------------------------------- SCRAM

USERS = [
    {"username": "ann", "scram": str(ScramVerifier.create("secret")), "is_superuser": True},
    {"username": "b,o=b", "scram": str(ScramVerifier.create("pass,=word"))},
    {"username": "plain", "password_hash": str(ScryptHash.create(b"secret", n=16))},
]


async def scram_code(node: ManagedNode, username: str, password: str, clientid: str = "c") -> int:
    """The Reason Code of a real login."""
    scram = ScramClient(username, password)
    peer = node.peer(5)
    await peer.open()
    properties = {c.AUTHENTICATION_METHOD: METHOD, c.AUTHENTICATION_DATA: scram.first()}
    await peer.send(Connect(5, clientid, properties=properties))
    packet = await peer.receive()
    if isinstance(packet, Auth):
        data = scram.final(packet.properties[c.AUTHENTICATION_DATA])
        await peer.send(Auth(0x18, {c.AUTHENTICATION_METHOD: METHOD, c.AUTHENTICATION_DATA: data}))
        packet = await peer.receive()
    assert isinstance(packet, Connack)
    await peer.drop()
    return packet.reason_code


@pytest.mark.parametrize(
    ("username", "password", "allowed"),
    [
        ("ann", "secret", True),
        ("ann", "wrong", False),
        ("b,o=b", "pass,=word", True),
        ("plain", "secret", False),
        ("nobody", "secret", False),
    ],
)
async def test_scram_says_what_a_client_would_be_told(username: str, password: str, allowed: bool) -> None:
    async with managed_node(access={"users": USERS}) as node:
        told = await tried(node, clientid="c", username=username, password=password, authentication_method=METHOD)
        assert told["reason_code"] == await scram_code(node, username, password)
        assert (told["allowed"], told["username"]) == (allowed, username)
        assert told["is_superuser"] is (username == "ann" and allowed)
        assert told["proved_by"] == ("configuration" if allowed else "")
        assert allowed or told["setting"] == "access.users"
        assert "scram" in [each["authenticator"] for each in told["steps"]]


async def test_without_keys_the_method_is_not_there() -> None:
    async with managed_node(access={"users": USERS[2:]}) as node:
        told = await tried(node, username="plain", password="secret", authentication_method=METHOD)
        assert (told["reason_code"], told["setting"]) == (0x8C, "access.users")
        assert await scram_code(node, "plain", "secret") == 0x8C


async def test_what_comes_before_and_after_the_proof() -> None:
    async with managed_node(access={"users": USERS}, zone={"use_username_as_client_id": True}) as node:
        body = {"username": "ann", "password": "secret", "authentication_method": METHOD}
        told = await tried(node, clientid="c", **body)
        assert (told["allowed"], told["clientid"]) == (True, "ann")
        assert (await node.api.post("/banned", {"as": "username", "who": "ann"})).code == 0
        told = await tried(node, clientid="c", **body)
        assert (told["allowed"], told["setting"]) == (False, "/banned/username/ann")
        assert told["reason_code"] == await scram_code(node, "ann", "secret")


async def test_who_has_no_name_where_the_name_is_the_identifier() -> None:
    async with managed_node(zone={"use_username_as_client_id": True}) as node:
        told = await tried(node, clientid="c")
        assert (told["allowed"], told["reason_code"], told["setting"]) == (False, 0x85, "use_username_as_client_id")
        assert (await tried(node, clientid="c", username="ann"))["clientid"] == "ann"


async def test_guesses_by_scram_are_slowed_and_slow_no_client() -> None:
    async with managed_node(access={"users": USERS, "guesses": 2, "guess_delay": 0.2}) as node:
        passwords = node.server.access.authentication.passwords
        for _ in range(3):
            told = await tried(node, username="ann", password="wrong", authentication_method=METHOD)
            assert told["reason_code"] == 0x87
        assert len(passwords.guesses._addresses) == len(passwords.guesses._names) == 0
        assert passwords.trial_guesses.delay("try_login", b"", False) > 0
        held = node.server.metrics.refusals.snapshot()["password_attempt_held"]
        told = await tried(node, username="ann", password="secret", authentication_method=METHOD)
        assert told["allowed"] is True  # a right one waits, and is taken
        assert node.server.metrics.refusals.snapshot()["password_attempt_held"] > held
        assert not passwords.guesses._known


@pytest.mark.parametrize(
    ("body", "code", "about"),
    [
        ({"username": "ann"}, 107, "password"),
        ({"password": "x"}, 107, "username"),
        ({"username": "", "password": "x"}, 108, "username"),
        ({"username": "ann", "password": ""}, 108, "password"),
        ({"username": "a\x07", "password": "x"}, 108, "username"),
        ({"username": "ann", "password": "a\x07"}, 108, "password"),
        ({"username": "x" * 65_536, "password": "x"}, 108, "username"),
        ({"username": "ann", "password": "x", "protocol": "3.1.1"}, 108, "protocol"),
        ({"username": "ann", "password": "x", "authentication_method": "PLAIN"}, 108, "authentication_method"),
    ],
)
async def test_what_is_no_login_by_scram(body: dict[str, Any], code: int, about: str) -> None:
    async with managed_node(access={"users": USERS}) as node:
        reply = await node.api.post("/access/try_login", {"authentication_method": METHOD, **body})
        assert_refused(reply, 400, code)
        assert about in reply.json["message"]


async def test_a_long_name_is_refused_as_a_client_is() -> None:
    """Longer than a message of SCRAM may be."""
    async with managed_node(access={"users": USERS}) as node:
        told = await tried(node, username="x" * 10_000, password="x", authentication_method=METHOD)
        assert told["allowed"] is False and "longer" in told["reason"]


async def test_neither_password_nor_certificate_is_in_a_log(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    issued = certificates.issue("device-1", expired=True)
    async with managed_node(listeners=[secure(certificates)], access={"users": USERS}) as node:
        await tried(node, username="ann", password="very-secret-indeed", authentication_method=METHOD)
        await tried(node, certificate=pem(issued))
    assert "very-secret-indeed" not in caplog.text and pem(issued)[40:80] not in caplog.text
