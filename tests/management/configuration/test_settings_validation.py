"""What is wrong with [access.http], [access.jwt] and [ruleengine] is told with file and line."""

from pathlib import Path

import pytest

from taipan.management.configuration.config import load
from taipan.management.configuration.config_document import ConfigError

CLUSTER = '[cluster]\nservers = ["nats://127.0.0.1:4222"]\n'


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "t.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load(str(path), (), {})
    return str(caught.value).replace(str(path), "t.toml")


@pytest.mark.parametrize(
    "text, error",
    [
        ('[access]\nauthenticators = ["kerberos"]', "t.toml:2: access.authenticators.0: expected one of"),
        ('[access]\nauthorizers = ["http", "http"]', "t.toml:2: access.authorizers: the source occurs twice"),
        ("[access.http]", "t.toml:1: access.http: needs auth_url, superuser_url or acl_url"),
        ('[access.http]\nauth_url = "h"', "t.toml:2: access.http.auth_url: expected http://host"),
        ('[access.http]\nacl_url = "http://h:x"', "t.toml:2: access.http.acl_url: not a URL"),
        ('[access.http]\nauth_url = "http://h"\nauth_metod = "get"', 't.toml:3: access.http.auth_metod: unknown key'),
        ('[access.http]\nauth_url = "http://h"\nauth_params = {t = "%t"}', "auth_params.t: %t is not one of"),
        ('[access.http]\nacl_url = "http://h"\nacl_params = {p = "%P"}', "access.http.acl_params.p: %P is not one of"),
        ('[access.http]\nsuperuser_url = "http://h"\nsuperuser_params = {p = "%A"}', "%A is not one of"),
        ('[access.http]\nauth_url = "http://h"\nheaders = {"a b" = "x"}', 'access.http.headers."a b": expected'),
        ('[access.http]\nauth_url = "http://h"\nheaders = {a = "x\\ny"}', "access.http.headers.a: expected"),
        ('[access.http]\nauth_url = "http://h"\npool_size = 0', "t.toml:3: access.http.pool_size: expected"),
        ('[access.http]\nauth_url = "https://h"\ncafile = "nowhere"', "t.toml:3: access.http.cafile: nowhere: No such"),
        ("[access.jwt]", "t.toml:1: access.jwt: needs secret, public_key_file, jwks_file or jwks_url"),
        ('[access.jwt]\nsecret = "x"\nalgorithms = []', "t.toml:3: access.jwt.algorithms: expected at least one"),
        ('[access.jwt]\nsecret = "x"\nalgorithms = ["none"]', "t.toml:3: access.jwt.algorithms.0: expected one of"),
        ('[access.jwt]\njwks_url = "file:///x"', "t.toml:2: access.jwt.jwks_url: expected http"),
        ('[access.jwt]\npublic_key_file = "nowhere"', "access.jwt: nowhere: No such file"),
        (
            '[access.jwt]\nsecret = "x"\ntoken_from = "username"\nverify_claims = {name = "%u"}',
            "t.toml:4: access.jwt.verify_claims.name: the token is the username",
        ),
        ("[cluster]", 't.toml:1: cluster: needs the key "servers"'),
        ("[cluster]\nservers = []", "t.toml:2: cluster.servers: expected at least one NATS server"),
        ('[cluster]\nservers = ["h:4222"]', 't.toml:2: cluster.servers.0: expected nats://host:port or tls://host:port'),
        ('[cluster]\nservers = ["nats://u:p@h"]', "cluster.servers.0: expected nats://host:port"),
        ('[cluster]\nservers = ["nats://h:99999"]', "cluster.servers.0: expected nats://host:port"),
        ('[cluster]\nservers = ["nats://h:0"]', "cluster.servers.0: expected nats://host:port"),
        ('[cluster]\nservers = ["nats://[1:2]:4222"]', "cluster.servers.0: expected nats://host:port"),
        ('[cluster]\nservers = ["nats://h", "nats://h"]', "cluster.servers.1: the server occurs twice"),
        ('[cluster]\nservers = ["nats://h", "tls://i"]', "cluster.servers.1: nats:// and tls:// cannot be mixed"),
        (f'{CLUSTER}name = "a.b"', "t.toml:3: cluster.name: expected 1 to 64 letters"),
        (f'{CLUSTER}user = "u"\ntoken = "t"', "t.toml:4: cluster.token: user already identifies this node"),
        (f'{CLUSTER}nkey_file = "/nowhere"\nuser = "u"', "t.toml:3: cluster.nkey_file: user already identifies"),
        (f'{CLUSTER}password = "p"', "t.toml:3: cluster.password: needs user"),
        (f'{CLUSTER}tls_ca = "/etc/passwd"', "t.toml:3: cluster.tls_ca: requires servers with tls://"),
        ('[cluster]\nservers = ["tls://h"]\ntls_cert = "/etc/passwd"', "t.toml:3: cluster.tls_cert: needs both"),
        ('[cluster]\nservers = ["tls://h"]\ntls_ca = "/etc/passwd"\ntls_verify = false', "tls_ca: has no effect"),
        (f"{CLUSTER}takeover_timeout = 0", "t.toml:3: cluster.takeover_timeout: expected a number of seconds"),
        (f'{CLUSTER}takeover = "steal"', 't.toml:3: cluster.takeover: expected one of "fresh", "refuse", got "steal"'),
        (f"{CLUSTER}suspect_after = 1", "t.toml:3: cluster.suspect_after: expected at least 2 seconds"),
        (f"{CLUSTER}suspect_after = 20", "cluster.stopped_after: must be longer than suspect_after"),
        (f"{CLUSTER}link_credit = 1", "t.toml:3: cluster.link_credit: expected at least 65536 bytes"),
        (f"{CLUSTER}timeout = 1", "t.toml:3: cluster.timeout: unknown key"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, text: str, error: str) -> None:
    assert error in refusal(tmp_path, text + "\n")


def test_the_password_of_a_nats_server_is_not_repeated(tmp_path: Path) -> None:
    said = refusal(tmp_path, '[cluster]\nservers = ["nats://u:geheim@h:4222"]\n')
    assert "nats://u:" in said and "geheim" not in said


def test_taken(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text('[access]\nauthorizers = ["http"]\n[access.http]\nacl_url = "http://h/a?b=c"\n', "utf-8")
    access = load(str(path), ["access.jwt.secret=x"], {}).broker.access
    assert access.http is not None and access.http.acl_url == "http://h/a?b=c"
    assert access.jwt is not None and access.jwt.secret == "x"
    assert access.authorizers == ("http",)


def test_a_cluster_is_taken_and_its_absence_too(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(CLUSTER, "utf-8")
    cluster = load(str(path), ["cluster.user=u", "cluster.password=p"], {}).broker.cluster
    assert cluster is not None and cluster.servers == ("nats://127.0.0.1:4222",) and cluster.user == "u"
    assert load(None, ['cluster.servers=["tls://[::1]:4222", "tls://b"]'], {}).broker.cluster is not None
    assert load(None, (), {}).broker.cluster is None


def test_every_mistake_of_the_rule_engine_is_told(tmp_path: Path) -> None:
    text = (
        '[ruleengine]\nrefused_networks = [\n"10.0.0.0/8",\n"10.0.0.1/8",\n"nonsense",\n"fe80::/129"]\n'
        "retry_backoff = 5\nretry_backoff_max = 4.5\n"
    )
    assert refusal(tmp_path, text).split("\n") == [
        "t.toml:4: ruleengine.refused_networks.1: 10.0.0.1/8 has host bits set",
        "t.toml:5: ruleengine.refused_networks.2: 'nonsense' does not appear to be an IPv4 or IPv6 network",
        "t.toml:6: ruleengine.refused_networks.3: 'fe80::/129' does not appear to be an IPv4 or IPv6 network",
        "t.toml:8: ruleengine.retry_backoff_max: must not be shorter than retry_backoff",
    ]
