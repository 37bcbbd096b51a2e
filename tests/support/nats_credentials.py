"""Every way in which a NATS server asks who a node is, with what lets a node in and what does not.

name = "credentials_file"
made = nats_credentials(name, directory)
async with NatsServers(more=made.server) as servers:
    made.urls(servers), made.right, made.wrong     # settings of ``[cluster]``
"""

import base64
import hashlib
import json
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import nkeys

from .certificates import Certificates
from .nats_server import NatsServers

KINDS: Final = ("user", "token", "nkey_file", "credentials_file", "tls")


class NatsCredentials(NamedTuple):
    """``server``: lines of its configuration. ``right``, ``wrong``: settings of a node. ``setting``: the key that is
    named where they are wrong."""

    server: str
    right: dict[str, Any]
    wrong: dict[str, Any]
    setting: str
    tls: bool = False

    def urls(self, servers: NatsServers) -> list[str]:
        if not self.tls:
            return list(servers.urls)
        return [url.replace("nats://127.0.0.1", "tls://localhost") for url in servers.urls]


def nats_credentials(kind: str, directory: Path) -> NatsCredentials:
    """``kind``: one of ``KINDS``. Files are made in ``directory``."""
    if kind == "user":
        server = 'authorization { user: "taipan", password: "right" }\n'
        return NatsCredentials(
            server, {"user": "taipan", "password": "right"}, {"user": "taipan", "password": "wrong"}, "cluster.user"
        )
    if kind == "token":
        return NatsCredentials(
            'authorization { token: "right" }\n', {"token": "right"}, {"token": "wrong"}, "cluster.token"
        )
    if kind == "nkey_file":
        pairs = [_pair(nkeys.PREFIX_BYTE_USER, number) for number in (1, 2)]
        files = [_write(directory / f"{number}.nk", pair.seed) for number, pair in enumerate(pairs)]
        server = f'authorization {{ users: [ {{ nkey: "{pairs[0].public_key.decode()}" }} ] }}\n'
        return NatsCredentials(server, {"nkey_file": files[0]}, {"nkey_file": files[1]}, "cluster.nkey_file")
    if kind == "credentials_file":
        return _credentials(directory)
    certificates = Certificates(directory)
    certfile, keyfile = certificates.issue("localhost")
    ours, our_key = certificates.issue("node")
    files_of_server = f'cert_file: "{certfile}", key_file: "{keyfile}", ca_file: "{certificates.ca}"'
    server = f"tls {{ {files_of_server}, verify: true }}\n"
    right = {"tls_ca": certificates.ca, "tls_cert": ours, "tls_key": our_key}
    return NatsCredentials(server, right, {"tls_ca": certificates.ca}, "cluster.tls_cert", tls=True)


def _credentials(directory: Path) -> NatsCredentials:
    """An operator, its account, and a user of the account, as ``nsc`` makes them; the wrong user is of another
    operator's account."""
    files, lines = [], []
    for number in (1, 2):
        operator = _pair(nkeys.PREFIX_BYTE_OPERATOR, number)
        account = _pair(nkeys.PREFIX_BYTE_ACCOUNT, number)
        system = _pair(nkeys.PREFIX_BYTE_ACCOUNT, number + 100)
        user = _pair(nkeys.PREFIX_BYTE_USER, number)
        everything = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
        free = {"subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1, "payload": -1}
        of_operator = _jwt(operator, operator, "operator", {"system_account": system.public_key.decode()})
        of_account = _jwt(account, operator, "account", {"limits": {**free, "wildcards": True, **everything}})
        of_system = _jwt(system, operator, "account", {"limits": {**free, "wildcards": True}})
        of_user = _jwt(user, account, "user", {"subs": -1, "data": -1, "payload": -1})
        text = (
            f"-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
        )
        files.append(_write(directory / f"{number}.creds", text.encode()))
        names = [each.public_key.decode() for each in (account, system)]
        lines.append(
            f'operator: "{of_operator}"\nsystem_account: "{names[1]}"\nresolver: MEMORY\n'
            f'resolver_preload {{ {names[0]}: "{of_account}", {names[1]}: "{of_system}" }}\n'
        )
    right, wrong = ({"credentials_file": each} for each in files)
    return NatsCredentials(lines[0], right, wrong, "cluster.credentials_file")


def _pair(prefix: int, number: int) -> nkeys.KeyPair:
    return nkeys.from_seed(bytearray(nkeys.encode_seed(bytes([number]) * 32, prefix)))


def _write(path: Path, data: bytes) -> str:
    path.write_bytes(bytes(data))
    return str(path)


def _jwt(subject: nkeys.KeyPair, issuer: nkeys.KeyPair, kind: str, more: dict[str, Any]) -> str:
    claims: dict[str, Any] = {
        "iat": int(time.time()),
        "iss": issuer.public_key.decode(),
        "name": kind,
        "sub": subject.public_key.decode(),
        "nats": {**more, "type": kind, "version": 2},
    }
    digest = hashlib.new("sha512_256", json.dumps(claims).encode()).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    head = _encoded(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    signed = f"{head}.{_encoded(json.dumps(claims).encode())}"
    return f"{signed}.{_encoded(issuer.sign(signed.encode()))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
