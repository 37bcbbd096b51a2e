"""taipan migrate emqx: plugins and modules that know users and rules become sources of access."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.broker.access.registry import ACCESS_SOURCES
from taipan.broker.config import BrokerSettings
from taipan.management.configuration.config import load
from taipan.management.node import main
from tests.management.configuration.test_known_secrets import sample
from tests.support.certificates import Certificates
from tests.support.emqx_modules import POSTGRESQL, REDIS

STOCK = Path(__file__).parent / "stock" / "plugins"
CONVERTED = {source.emqx.plugin: source for source in ACCESS_SOURCES if source.emqx is not None and source.emqx.keys}
SOURCES = pytest.mark.parametrize("plugin", CONVERTED)


def etc(tmp_path: Path, *loaded: str, conf: str = "", **plugins: str) -> Path:
    """The directory of a node with these plugins. ``plugins``: the text of their files, else what EMQX ships."""
    directory = tmp_path / "emqx" / "etc"
    (directory / "plugins").mkdir(parents=True)
    (directory / "emqx.conf").write_text(f"listener.tcp.external = 127.0.0.1:1883\n{conf}")
    for file in STOCK.glob("*.conf"):
        shutil.copy(file, directory / "plugins")
    for name, text in plugins.items():
        (directory / "plugins" / f"{name}.conf").write_text(text)
    (directory.parent / "data").mkdir()
    lines = [f"{{{name}, true}}.\n" for name in ("emqx_management", *loaded)]
    (directory.parent / "data" / "loaded_plugins").write_text("".join(lines))
    return directory


def migrated(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[BrokerSettings, str]:
    into = tmp_path / "into"
    assert main(["migrate", "emqx", str(path), "--into", str(into)]) == 0, capsys.readouterr()
    told = capsys.readouterr().out
    assert main(["check", str(into / "taipan.toml")]) == 0
    return load(str(into / "taipan.toml"), environ={}).broker, told


@SOURCES
def test_a_file_that_emqx_ships(plugin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is commented out has EMQX's default; each other line is in the report, and no secret."""
    directory = etc(tmp_path, plugin, conf="allow_anonymous = true\nacl_nomatch = allow\n")
    found, told = migrated(directory, tmp_path, capsys)
    source = CONVERTED[plugin]
    table: Any = getattr(found.access, source.name)
    assert source.settings is not None
    shipped = {"timeout": 30, "bind_dn": "cn=root,dc=emqx,dc=io", "bind_password": "public"}
    assert table == msgspec.structs.replace(source.settings(), **(shipped if source.name == "ldap" else {}))
    file = directory / "plugins" / f"{plugin}.conf"
    for number, line in enumerate(file.read_text().splitlines(), 1):
        assert (f"{file}:{number}: " in told) == bool(line and not line.startswith("#")), line
    others = [getattr(found.access, each.name) for each in CONVERTED.values() if each is not source]
    assert others == [None] * len(others)
    # The clients that it does not know come in as they did.
    assert found.access.no_match == "allow" and found.listener_zones[0].allow_anonymous is True


@SOURCES
def test_a_key_that_is_commented_out_asks_nothing(
    plugin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (STOCK / f"{plugin}.conf").read_text()
    words = [word for word in ("super_query", "acl_query", "super_cmd", "acl_cmd") if f".{word} =" in text]
    for word in words:
        text = "\n".join(f"## {line}" if f".{word} =" in line else line for line in text.splitlines())
    found, _ = migrated(etc(tmp_path, plugin, **{plugin: text}), tmp_path, capsys)
    table: Any = getattr(found.access, CONVERTED[plugin].name)
    assert [getattr(table, word) for word in words] == [""] * len(words)


def test_other_values_than_those_that_are_shipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = etc(
        tmp_path, "emqx_auth_pgsql", "emqx_auth_redis",
        emqx_auth_pgsql="""
auth.pgsql.server = db.example:5433
auth.pgsql.pool = 4
auth.pgsql.username = mqtt
auth.pgsql.password = "s3 cr3t"
auth.pgsql.database = users
auth.pgsql.password_hash = pbkdf2,sha256,1000,20
auth.pgsql.auth_query = select password, salt from people where name = '%u'
auth.pgsql.ssl = on
auth.pgsql.ssl.cacertfile = etc/certs/ca.pem
auth.pgsql.ssl.verify = true
auth.pgsql.ssl.server_name_indication = disable
""",
        emqx_auth_redis="auth.redis.server = 6380\nauth.redis.query_timeout = 1500ms\nauth.redis.database = 3\n"
        "auth.redis.auth_cmd = HGET user:%u hash\nauth.redis.password_hash = salt,bcrypt\nauth.redis.ssl = on\n",
    )  # fmt: skip
    (directory / "certs").mkdir()
    Certificates(directory / "certs")
    found, told = migrated(directory, tmp_path, capsys)
    access: Any = found.access
    table = access.postgresql
    assert (table.server, table.pool_size, table.username, table.password) == ("db.example:5433", 4, "mqtt", "s3 cr3t")
    assert (table.database, table.password_hash) == ("users", "pbkdf2,sha256,1000,20")
    assert table.auth_query == "select password, salt from people where name = '%u'"
    assert (table.super_query, table.acl_query) == ("", "")
    assert (table.tls, table.tls_verify, table.cafile) == (True, True, f"{directory}/certs/ca.pem")
    table = access.redis
    assert (table.server, table.timeout, table.database) == ("6380", 1.5, 3)
    assert (table.auth_cmd, table.super_cmd, table.acl_cmd) == ("HGET user:%u hash", "", "")
    assert (table.tls, table.tls_verify) == (True, False)
    assert "access.redis.tls_verify = false, as in EMQX" in told and "access.postgresql.tls_verify = f" not in told
    assert "s3 cr3t" not in told and 'access.redis.on_failure = "ignore" asks the next source' in told
    assert "left out: auth.pgsql.ssl.server_name_indication disable: the name in the server's address" in told


@pytest.mark.parametrize(
    "lines, expected",
    [
        ("type = sentinel\nauth.redis.server = a:26379, b\nauth.redis.sentinel = mymaster", ("sentinel", "mymaster")),
        ("type = cluster\nauth.redis.server = a:7001,b:7002", ("cluster", "")),
    ],
)
def test_redis_with_sentinels_or_as_a_cluster(
    lines: str, expected: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = etc(tmp_path, "emqx_auth_redis", emqx_auth_redis=f"auth.redis.{lines}\n"
                    "auth.redis.auth_cmd = HGET user:%u hash\n")  # fmt: skip
    found, told = migrated(directory, tmp_path, capsys)
    access: Any = found.access
    assert (access.redis.type, access.redis.sentinel) == expected and access.redis.server.startswith("a:")
    assert "carried: auth.redis.type" in told


def test_what_emqx_does_not_use_with_this_type_of_redis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "type = {}\nauth.redis.server = a:7001\nauth.redis.sentinel = m\nauth.redis.database = 3\n"
    lines += "auth.redis.auth_cmd = HGET user:%u hash\n"
    for number, (kind, database) in enumerate([("single", 3), ("cluster", 0)]):
        directory = etc(tmp_path / str(number), "emqx_auth_redis", emqx_auth_redis=f"auth.redis.{lines}".format(kind))
        found, told = migrated(directory, tmp_path / str(number), capsys)
        access: Any = found.access
        assert (access.redis.type, access.redis.sentinel, access.redis.database) == (kind, "", database)
        assert f"left out: auth.redis.sentinel m: not used with type = {kind}" in told
        assert ("left out: auth.redis.database 3" in told) == (kind == "cluster")


@pytest.mark.parametrize(
    "plugin, line, said",
    [
        ("emqx_auth_pgsql", "auth.pgsql.auth_query = select password from mqtt_user", "wrong: auth.pgsql.auth_query"),
        ("emqx_auth_pgsql", "auth.pgsql.pool = many", "expected a whole number"),
        ("emqx_auth_mysql", "auth.mysql.password_hash = rot13", "wrong: auth.mysql.password_hash rot13"),
        ("emqx_auth_mysql", "auth.mysql.ssl.cacertfile = etc/none.pem", "no such file"),
        ("emqx_auth_redis", "auth.redis.query_timeout = soon", "expected a time such as 15s"),
        ("emqx_auth_redis", "auth.redis.auth_cmd = %u", "expected a command of Redis"),
        ("emqx_auth_redis", "auth.redis.type = several", "wrong: auth.redis.type several"),
    ],
)
def test_what_is_wrong_is_told_by_its_line(
    plugin: str, line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (STOCK / f"{plugin}.conf").read_text()
    directory = etc(tmp_path, plugin, **{plugin: f"{text}\n{line}\n"})
    assert main(["migrate", "emqx", str(directory), "--into", str(tmp_path / "into")]) == 2
    number = len(f"{text}\n{line}\n".splitlines())
    told = capsys.readouterr().out
    assert f"{plugin}.conf:{number}: wrong: " in told and said in told
    assert not (tmp_path / "into").exists()


def test_a_published_authority_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever has the key of its client certificate could answer as the database, and let every client in."""
    text = (STOCK / "emqx_auth_mysql.conf").read_text()
    ca = sample(tmp_path, "EMQX, its authority", "cacert.pem")
    text += f"\nauth.mysql.ssl = on\nauth.mysql.ssl.verify = true\nauth.mysql.ssl.cacertfile = {ca}\n"
    found, told = migrated(etc(tmp_path, "emqx_auth_mysql", emqx_auth_mysql=text), tmp_path, capsys)
    table: Any = found.access.mysql  # type: ignore[attr-defined]
    assert (table.tls, table.tls_verify, table.cafile) == (True, True, "")
    assert f"left out: auth.mysql.ssl.cacertfile {ca}: EMQX publishes a key of this authority" in told


def test_the_settings_of_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        (STOCK / "emqx_auth_ldap.conf").read_text()
        + """
auth.ldap.servers = a.example,b.example
auth.ldap.bind_password = s3cr3t
auth.ldap.custom_base_dn = ${device_dn}
auth.ldap.filters.1.key = objectClass
auth.ldap.filters.1.value = mqttUser
auth.ldap.filters.1.op = and
auth.ldap.filters.2.key = mail
auth.ldap.filters.2.value = ${user}
auth.ldap.bind_as_user = true
auth.ldap.username.attributetype = cn
auth.ldap.ssl = true
auth.ldap.ssl.verify = verify_peer
"""
    )
    found, told = migrated(etc(tmp_path, "emqx_auth_ldap", emqx_auth_ldap=text), tmp_path, capsys)
    table: Any = found.access.ldap  # type: ignore[attr-defined]
    assert (table.servers, table.port, table.bind_password) == ("a.example,b.example", 389, "s3cr3t")
    assert (table.custom_base_dn, table.bind_as_user, table.username_attributetype) == ("${device_dn}", True, "cn")
    assert [(each.key, each.value, each.op) for each in table.filters] == [
        ("objectClass", "mqttUser", "and"), ("mail", "${user}", "and"),
    ]  # fmt: skip
    assert (table.tls, table.tls_verify) == (True, True) and "s3cr3t" not in told
    _, told = migrated(etc(tmp_path / "2", "emqx_auth_ldap"), tmp_path / "2", capsys)
    assert "auth.ldap.bind_password ...: access.ldap.bind_password: EMQX's published default" in told


def test_what_has_no_counterpart_leaves_nobody_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside one that has one; and one whose file is missing."""
    conf = "allow_anonymous = true\nacl_nomatch = allow\n"
    directory = etc(tmp_path, "emqx_auth_pgsql", "emqx_auth_mongo", "emqx_auth_redis", conf=conf)
    (directory / "plugins" / "emqx_auth_redis.conf").unlink()
    found, told = migrated(directory, tmp_path, capsys)
    assert found.access.postgresql is not None and found.access.redis is None  # type: ignore[attr-defined]
    assert found.access.no_match == "deny" and found.listener_zones[0].allow_anonymous is False
    assert "emqx_auth_mongo: it decided which clients may connect" in told
    assert "emqx_auth_redis.conf does not exist; it decided" in told


def test_the_file_of_loaded_plugins_is_where_the_configuration_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = etc(tmp_path, conf="plugins.loaded_file = lib/loaded\n")
    (directory.parent / "lib").mkdir()
    (directory.parent / "lib" / "loaded").write_text("{emqx_auth_mysql, true}.\n{emqx_auth_redis, false}.\n")
    found, _ = migrated(directory, tmp_path, capsys)
    access: Any = found.access
    assert access.mysql is not None and access.redis is None and access.postgresql is None


def test_nobody_knows_whether_a_plugin_was_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = etc(tmp_path)
    (directory.parent / "data" / "loaded_plugins").unlink()
    found, told = migrated(directory, tmp_path, capsys)
    assert [getattr(found.access, each.name) for each in CONVERTED.values()] == [None] * len(CONVERTED)
    assert "emqx_auth_redis: whether it is loaded" in told and "set it up here: [access.redis]" in told


ORDERS = {
    "none": ("configuration stored jwt http", "stored configuration jwt http", "has its default order"),
    "redis, pgsql": ("redis postgresql configuration stored", "redis postgresql stored configuration", ""),
    "mnesia,file, mongo": (
        "stored configuration jwt http", "stored configuration jwt http", "without a counterpart: mongo"
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_the_sources(order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that it names come first, the others in the order of Taipan."""
    conf = f"auth_order = {order}\nacl_order = {order}\n"
    found, told = migrated(etc(tmp_path, "emqx_auth_pgsql", conf=conf), tmp_path, capsys)
    authenticators, authorizers, said = ORDERS[order]
    access: Any = found.access
    assert " ".join(access.authenticators[:4]) == authenticators
    assert " ".join(access.authorizers[:4]) == authorizers
    assert sorted(access.authenticators) == sorted(access.authorizers) == sorted(s.name for s in ACCESS_SOURCES)
    assert f"emqx.conf:2: carried: auth_order {order}: " in told and said in told


def export(tmp_path: Path, **modules: Any) -> Path:
    records = [
        {"id": f"module:{name}", "type": name, "config": config, "enabled": True, "description": ""}
        for name, config in modules.items()
    ]
    path = tmp_path / "export.json"
    path.write_text(json.dumps({"version": "4.4", "modules": records, "date": "2024-10-14 14:29:44"}))
    return path


def test_the_modules_of_an_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = export(tmp_path, presence={"qos": 0}, redis_authentication=REDIS, pgsql_authentication=POSTGRESQL)
    found, told = migrated(path, tmp_path, capsys)
    access: Any = found.access
    assert (access.redis.server, access.redis.timeout, access.redis.acl_cmd) == ("redis:6379", 5.0, REDIS["acl_cmd"])
    table = access.postgresql
    assert (table.server, table.username, table.password) == ("postgres:5432", "postgres", "postgres")
    assert (table.database, table.acl_query) == ("postgres", POSTGRESQL["acl_query"])
    assert "carried: module pgsql_authentication: [access.postgresql]" in told and access.no_match == "allow"


def test_modules_without_a_counterpart_leave_nobody_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {**REDIS, "pool_size": "many"}
    path = export(tmp_path, redis_authentication=wrong, mongo_authentication={"type": "single"})
    found, told = migrated(path, tmp_path, capsys)
    assert found.access.no_match == "deny" and found.access.redis is None  # type: ignore[attr-defined]
    assert found.zones["external"].allow_anonymous is False
    assert "left out: module redis_authentication: pool_size: expected a whole number" in told
    assert "left out: module mongo_authentication: it decided which clients may connect" in told


def test_a_module_that_is_disabled_and_one_with_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ca = {"filename": "ca.pem", "file": "-----BEGIN CERTIFICATE-----"}
    config = {**POSTGRESQL, "ssl": True, "verify": True, "cacertfile": ca}
    path = export(tmp_path, pgsql_authentication=config, redis_authentication=REDIS)
    text = json.loads(path.read_text())
    text["modules"][1]["enabled"] = False
    path.write_text(json.dumps(text))
    found, told = migrated(path, tmp_path, capsys)
    access: Any = found.access
    assert access.redis is None and "left out: module redis_authentication: disabled" in told
    assert (access.postgresql.tls, access.postgresql.tls_verify, access.postgresql.cafile) == (True, True, "")
    assert "write the certificate or key into a file, and its path into access.postgresql.cafile" in told
