"""The loader: what it takes, how its sources are joined, and how it names what is wrong."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.access.foreign_hashes import NO_BCRYPT
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.scram import ScramVerifier
from taipan.broker.config import ListenerSettings, ZoneSettings, parse_bind
from taipan.management.configuration.config import SETTING_TYPES, load
from taipan.management.configuration.config import read as read_configuration
from taipan.management.configuration.config_document import ConfigDocument, ConfigError, Origin
from taipan.management.configuration.setting_types import fields_of, struct_of, union_members
from taipan.management.configuration.settings_validation import VALUE_RULES, binds_overlap
from tests.broker.access.test_foreign_hashes import BCRYPT
from tests.support.no_package import without

HASH = str(ScryptHash.create(b"secret", n=16))
SCRAM = str(ScramVerifier.create("secret"))
LISTENER = '[[listeners]]\nname = "a"\ntype = "tcp"\nbind = "127.0.0.1:1"\n'
UNIX = '[[listeners]]\nname = "a"\ntype = "unix"\nbind = "/run/a.sock"\n'
SECURE = (
    '[[listeners]]\nname = "a"\ntype = "ssl"\nbind = "127.0.0.1:1"\n[listeners.tls]\ncertfile = "c"\nkeyfile = "k"\n'
)


def read(tmp_path: Path, text: str, *overrides: str, environ: dict[str, str] | None = None) -> Any:
    path = tmp_path / "t.toml"
    path.write_text(text, encoding="utf-8")
    return load(str(path), overrides, environ or {})


def refusal(tmp_path: Path, text: str, *overrides: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, *overrides, environ=environ)
    message = str(caught.value)
    assert message.replace("\n", "").isprintable()
    return message.replace(str(tmp_path / "t.toml"), "t.toml")


def test_without_bcrypt_a_user_with_its_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f'[[access.users]]\nusername = "bea"\npassword_hash = "{BCRYPT[b"U*U"]}"'
    assert read(tmp_path, text).broker.access.users[0].username == "bea"
    without(monkeypatch, "bcrypt")
    assert refusal(tmp_path, text) == f"t.toml:3: access.users.0.password_hash: {NO_BCRYPT}"


def test_without_a_file() -> None:
    settings = load(environ={}).broker
    assert [(each.name, each.type, each.bind) for each in settings.listeners] == [
        ("default", "tcp", "127.0.0.1:1883"),
        ("websocket", "ws", "127.0.0.1:8083"),
    ]
    assert settings.listener_zones == (ZoneSettings(), ZoneSettings())
    assert settings.zones == {"external": ZoneSettings()}


def test_every_table(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        f"""
        [node]
        name = "x@y"
        [log]
        level = "debug"
        format = "json"
        [retained]
        max_messages = 1
        [delayed]
        enabled = false
        [sys_topics]
        interval = 5
        [shared]
        strategy = "sticky"
        [durability]
        level = "memory"
        [access]
        no_match = "deny"
        users = [{{ username = "u", password_hash = "{HASH}", scram = "{SCRAM}" }}]
        [[access.rules]]
        allow = true
        topics = ["a/%c/#", "eq +/b"]
        address = "10.0.0.0/8"
        [zones.internal]
        max_qos = 1
        queue_priorities = {{ "a/#" = 255 }}
        message_rate = [10, 0.5]
        """,
    )
    broker = settings.broker
    assert (broker.node.name, settings.log.level, settings.log.format) == ("x@y", "debug", "json")
    assert (broker.retained.max_messages, broker.delayed.enabled, broker.sys_topics.interval) == (1, False, 5.0)
    assert (broker.shared.strategy, broker.access.no_match) == ("sticky", "deny")
    assert broker.access.users[0].username == "u"
    assert broker.access.rules[0].topics == ["a/%c/#", "eq +/b"]
    assert broker.zones["internal"].message_rate == (10, 0.5)
    assert broker.zones["external"] == ZoneSettings()


def test_a_listener_overrides_its_zone(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        LISTENER + 'zone = "z"\nmax_qos = 0\n' + LISTENER.replace('"a"', '"b"').replace(":1", ":2")
        + "[zones.z]\nmax_qos = 1\nmax_inflight = 7\n[zones.external]\nmax_inflight = 9\n",
    ).broker  # fmt: skip
    first, second = settings.listener_zones
    assert (first.max_qos, first.max_inflight) == (0, 7)
    assert (second.max_qos, second.max_inflight) == (2, 9)
    assert settings.zones["z"].max_qos == 1


def test_later_sources_win(tmp_path: Path) -> None:
    environ = {"TAIPAN__NODE__NAME": "env@h", "TAIPAN__NODE__DATA_DIR": "env", "TAIPANX": "no", "taipan__node": "no"}
    settings = read(tmp_path, '[node]\nname = "file@h"\ndata_dir = "file"', "node.name=set@h", environ=environ).broker
    assert (settings.node.name, settings.node.data_dir) == ("set@h", "env")


@pytest.mark.parametrize(
    "override, get, value",
    [
        ("listeners.0.bind=127.0.0.1:7", lambda s: s.listeners[0].bind, "127.0.0.1:7"),
        ("listeners.1.max_qos=1", lambda s: s.listener_zones[1].max_qos, 1),
        ("node.data_dir=7", lambda s: s.node.data_dir, "7"),
        ('node.data_dir="7"', lambda s: s.node.data_dir, "7"),
        ("node.data_dir=a = b", lambda s: s.node.data_dir, "a = b"),
        ("node.data_dir=1\nb = 2", lambda s: s.node.data_dir, "1\nb = 2"),
        ("zones.external.message_rate=[1, 2]", lambda s: s.zones["external"].message_rate, (1, 2.0)),
        ("zones.new.max_qos=1", lambda s: s.zones["new"].max_qos, 1),
        ("zones.external.allow_anonymous=true", lambda s: s.zones["external"].allow_anonymous, True),
        ("access.rules.0.allow=false", lambda s: s.access.rules[0].allow, False),
        ("access.rules=[{allow=true}]", lambda s: s.access.rules[0].allow, True),
        ("sys_topics.interval = 0", lambda s: s.sys_topics.interval, 0.0),
        ("limits.memory=536870912", lambda s: s.limits.memory, 536_870_912),
        ("limits.memory=536_870_912", lambda s: s.limits.memory, 536_870_912),
        ("limits.memory=50%", lambda s: s.limits.memory, "50%"),
        ("limits.memory=0.5", lambda s: s.limits.memory, "0.5"),
        ("access.users.0.username=12", lambda s: s.access.users[0].username, "12"),
    ],
)
def test_overrides(override: str, get: Any, value: object) -> None:
    assert get(load(overrides=[override], environ={}).broker) == value
    key, _, text = override.partition("=")
    name = "TAIPAN__" + "__".join(key.strip().upper().split("."))
    assert get(load(environ={name: text}).broker) == value


def test_a_new_listener_by_index() -> None:
    settings = load(
        overrides=["listeners.2.name=c", "listeners.2.type=tcp", "listeners.2.bind=[::1]:9"], environ={}
    ).broker
    assert settings.listeners[2] == ListenerSettings(name="c", type="tcp", bind="[::1]:9")


@pytest.mark.parametrize(
    "text, message",
    [
        ('[node]\n\nnam = "a@b"', 't.toml:3: node.nam: unknown key; did you mean "name"?'),
        ("[nod]\n", 't.toml:1: nod: unknown key; did you mean "node"?'),
        ("[managment]\n", 't.toml:1: managment: unknown key; did you mean "management"?'),
        ('[management]\nbind = "8081"', "t.toml:2: management.bind: expected host:port"),
        ('[[management.apps]]\nid = "-"\nsecret = "x"', "t.toml:2: management.apps.0.id: expected 1 to 256 letters"),
        ('[[management.apps]]\nid = "a"\nsecret = ""', "t.toml:3: management.apps.0.secret: expected a secret"),
        ('[node]\n"na\\nme" = 1', 't.toml:2: node."na\\nme": unknown key; did you mean "name"?'),
        ("[node]\nname = 3", "t.toml:2: node.name: expected a string, got 3"),
        ("node = 3", "t.toml:1: node: expected a table, got 3"),
        ('[node]\nname = "x"', "t.toml:2: node.name: expected <name>@<host>"),
        ('[node]\ndata_dir = ""', "t.toml:2: node.data_dir: expected a directory"),
        ("a = 1\na = 2", "t.toml:2: Cannot overwrite a value"),
        ('a = "x', "t.toml:1: "),
        ("listeners = 1", "t.toml:1: listeners: expected tables [[listeners]]"),
        ("listeners = []", "t.toml:1: listeners: expected at least one listener"),
        ("listeners = [1]", "t.toml:1: listeners.0: expected a table, got 1"),
        ('[[listeners]]\nname = "a"', 't.toml:1: listeners.0: needs the key "type"'),
        (LISTENER + "max_qoss = 1", 't.toml:5: listeners.0.max_qoss: unknown key; did you mean "max_qos"?'),
        (LISTENER + "backlogs = 1", 't.toml:5: listeners.0.backlogs: unknown key; did you mean "backlog"?'),
        (LISTENER + "max_qos = 3", "t.toml:5: listeners.0.max_qos: expected a whole number from 0 to 2, got 3"),
        (LISTENER + "max_qos = true", "t.toml:5: listeners.0.max_qos: expected a whole number from 0 to 2, got true"),
        (LISTENER + 'zone = "externl"', 't.toml:5: listeners.0.zone: no zone "externl"; did you mean "external"?'),
        (LISTENER + LISTENER, "t.toml:6: listeners.1.name: listeners.0 already has this name and this type"),
        (
            LISTENER + LISTENER.replace('"a"', '"b"'),
            "t.toml:8: listeners.1.bind: 127.0.0.1:1 is already the address of listeners.0",
        ),
        (LISTENER.replace('"a"', '"a b"'), "t.toml:2: listeners.0.name: expected 1 to 64 letters"),
        (
            LISTENER.replace("tcp", "tpc"),
            (
                't.toml:3: listeners.0.type: expected one of "tcp", "ssl", "ws", "wss", "unix", "coap", '
                '"coaps", "lwm2m", "lwm2ms", "mqttsn", got "tpc"'
            ),
        ),
        (LISTENER.replace("tcp", "unix"), "t.toml:4: listeners.0.bind: expected the path of the socket, such as /run/"),
        (LISTENER.replace("127.0.0.1:1", "/run/a.sock"), "t.toml:4: listeners.0.bind: expected host:port"),
        (UNIX + 'path = "/x"', "t.toml:5: listeners.0.path: only ws and wss listeners accept this key"),
        (UNIX + "nodelay = true", "t.toml:5: listeners.0.nodelay: only tcp, ssl, ws and wss listeners accept this key"),
        (UNIX + "reuse_port = true", "t.toml:5: listeners.0.reuse_port: only tcp, ssl, ws and wss listeners accept"),
        (LISTENER + 'socket_mode = "0660"', "t.toml:5: listeners.0.socket_mode: only unix listeners accept this key"),
        (UNIX + 'socket_mode = "rw"', "t.toml:5: listeners.0.socket_mode: expected a mode in octal digits, such as"),
        (
            UNIX.replace("/run/a.sock", f"/run/{'a' * 103}"),
            "t.toml:4: listeners.0.bind: expected a path of at most 107",
        ),
        (
            UNIX + "[listeners.tls]\ncertfile = 'c'\nkeyfile = 'k'",
            't.toml:5: listeners.0.tls: a "unix" listener has no',
        ),
        (
            UNIX + UNIX.replace('"a"', '"b"'),
            "t.toml:8: listeners.1.bind: /run/a.sock is already the address of listeners.0",
        ),
        (LISTENER.replace("127.0.0.1:1", "1883"), "t.toml:4: listeners.0.bind: expected host:port"),
        (LISTENER.replace("tcp", "wss"), 't.toml:1: listeners.0: "wss" needs tls with certfile and keyfile'),
        (LISTENER + 'path = "/x"', "t.toml:5: listeners.0.path: only ws and wss listeners accept this key"),
        (
            LISTENER.replace("tcp", "ws") + 'path = "x"',
            "t.toml:5: listeners.0.path: expected a path that begins with /",
        ),
        (
            LISTENER.replace("tcp", "ws") + 'path = ["/mqtt", "x"]',
            't.toml:5: listeners.0.path.1: expected a path that begins with /, got "x"',
        ),
        (
            LISTENER.replace("tcp", "ws") + 'path = ["*"]',
            't.toml:5: listeners.0.path.0: expected a path that begins with /, got "*"',
        ),
        (LISTENER.replace("tcp", "ws") + "path = []", "t.toml:5: listeners.0.path: expected at least one path"),
        (
            LISTENER.replace("tcp", "ws") + 'path = ["/a", "/b", "/a/"]',
            "t.toml:5: listeners.0.path.2: the path occurs twice",
        ),
        (LISTENER.replace("tcp", "ws") + "path = 5", "t.toml:5: listeners.0.path: expected a string or a list"),
        (
            LISTENER.replace("tcp", "ws") + 'allowed_origins = ["*", "https://panel.example/"]',
            't.toml:5: listeners.0.allowed_origins.1: expected an origin without a path, such as "https://app.example.org"',
        ),
        (SECURE.replace("ssl", "tcp"), 't.toml:5: listeners.0.tls: a "tcp" listener has no TLS; use ssl or wss'),
        (SECURE.replace("ssl", "coap"), 't.toml:5: listeners.0.tls: a "coap" listener has no TLS; use coaps'),
        (SECURE.replace("ssl", "mqttsn"), 't.toml:5: listeners.0.tls: a "mqttsn" listener has no TLS'),
        (SECURE + "cert = 1", 't.toml:8: listeners.0.tls.cert: unknown key; did you mean "certfile"?'),
        (SECURE + 'verify = "required"', "t.toml:8: listeners.0.tls.verify: needs cafile"),
        (SECURE + 'cafile = "x"', "t.toml:8: listeners.0.tls.cafile: requests client certificates"),
        (SECURE + 'peer_cert_as_username = "cn"', "t.toml:8: listeners.0.tls.peer_cert_as_username: requests"),
        (SECURE + 'min_version = "1.0"', 't.toml:8: listeners.0.tls.min_version: expected one of "1.2", "1.3", got'),
        (
            SECURE + 'server_names = { "x.y" = { certfile = "c" } }',
            't.toml:8: listeners.0.tls.server_names."x.y": needs',
        ),
        (
            SECURE + 'server_names = { x = { certfile = "c", keyfile = "k", key = "" } }',
            't.toml:8: listeners.0.tls.server_names.x.key: unknown key; did you mean "keyfile"?',
        ),
        (SECURE.replace('"c"', '""'), "t.toml:5: listeners.0.tls: needs certfile, or psk_file in place"),
        (SECURE + 'psk_hint = "x"', "t.toml:8: listeners.0.tls.psk_hint: has no effect without psk_file"),
        (SECURE + 'psk_file = "x"', "t.toml:6: listeners.0.tls.certfile: has no effect with psk_file"),
        (
            '[management.tls]\ncertfile = "c"\nkeyfile = "k"\npsk_file = "x"',
            "t.toml:4: management.tls.psk_file: unknown key",
        ),
        ("[zones]\nz = 1", "t.toml:2: zones.z: expected a table, got 1"),
        ("[zones.z]\nmax_qs = 1", 't.toml:2: zones.z.max_qs: unknown key; did you mean "max_qos"?'),
        (
            "[zones.z]\nidle_timeout = 0",
            "t.toml:2: zones.z.idle_timeout: expected a number of seconds, more than 0, got 0",
        ),
        ("[zones.z]\nidle_timeout = inf", "t.toml:2: zones.z.idle_timeout: expected a finite number, got inf"),
        ("[zones.z]\nretry_interval = nan", "t.toml:2: zones.z.retry_interval: expected a finite number, got nan"),
        (
            "[zones.z]\nkeep_alive_multiplier = 0.5",
            "t.toml:2: zones.z.keep_alive_multiplier: expected a number, 1 or more, got 0.5",
        ),
        (
            "[zones.z]\nmessage_rate = [0, 1]",
            "t.toml:2: zones.z.message_rate: expected [amount, seconds], both more than 0, got a list of 2",
        ),
        (
            "[zones.z]\nmessage_rate = [1]",
            "t.toml:2: zones.z.message_rate: expected [amount, seconds], both more than 0, got a list of 1",
        ),
        (
            '[zones.z]\nqueue_priorities = {"a" = 256}',
            "t.toml:2: zones.z.queue_priorities.a: expected a whole number from 1 to 255, got 256",
        ),
        (
            '[zones.z]\nqueue_priorities = {"a" = 1, "b/#" = 0}',
            't.toml:2: zones.z.queue_priorities."b/#": expected a whole number from 1 to 255, got 0',
        ),
        ('[zones.z]\nqueue_priorities = {"a#" = 5}', 't.toml:2: zones.z.queue_priorities."a#": "#" must be alone'),
        ("[zones.z]\nsuback_denied_code = 1", "t.toml:2: zones.z.suback_denied_code: expected one of 0x80, 0x83"),
        (
            '[zones.z]\nclient_id_prefix = "a\\u0000"',
            "t.toml:2: zones.z.client_id_prefix: expected at most 65000 bytes of UTF-8 without U+0000",
        ),
        (
            f'[zones.z]\nresponse_information = "{"x" * 65_536}"',
            "t.toml:2: zones.z.response_information: expected at most 65535 bytes of UTF-8 without U+0000",
        ),
        (
            "[zones.z]\nmax_packet_size = 268_435_461",
            "t.toml:2: zones.z.max_packet_size: expected a whole number of bytes from 1 to 268435460, got 268435461",
        ),
        ('[zones.z]\nmountpoint = "a/+/"', "t.toml:2: zones.z.mountpoint: expected a topic prefix without + and #"),
        (
            f'[zones.z]\nmountpoint = "{"x" * 65_001}"',
            "t.toml:2: zones.z.mountpoint: expected at most 65000 bytes of UTF-8 without U+0000",
        ),
        (
            f'[[listeners]]\nname = "a"\ntype = "tcp"\nbind = "127.0.0.1:1"\nmountpoint = "{"ä" * 32_501}"',
            "t.toml:5: listeners.0.mountpoint: expected at most 65000 bytes of UTF-8 without U+0000",
        ),
        ('[durability]\nlevel = "dsk"', 't.toml:2: durability.level: expected one of "memory", "disk", got'),
        ('[log]\nlevel = "x"', "t.toml:2: log.level: expected one of"),
        ('[[access.users]]\nusername = ""', "t.toml:2: access.users.0.username: expected a username"),
        ('[[access.users]]\nusername = "a"\n' * 2, 't.toml:4: access.users.1.username: "a" occurs twice'),
        (
            '[access]\nusers = [{username = "a", password_hash = "x"}]',
            "t.toml:2: access.users.0.password_hash: expected",
        ),
        (
            '[[access.users]]\nusername = "a"\npassword_hash = "$7$1$x$y"',
            "t.toml:3: access.users.0.password_hash: not base64",
        ),
        ('[[access.users]]\nusername = "a"\nscram = "x"', "t.toml:3: access.users.0.scram: expected SCRAM-SHA-256$"),
        (f'[[access.users]]\nusername = "\u2168"\nscram = "{SCRAM}"', "t.toml:2: access.users.0.username: with scram"),
        (f'[[access.users]]\nusername = "\\u0007"\nscram = "{SCRAM}"', "t.toml:2: access.users.0.username: with scram"),
        (
            '[[access.users]]\nusername = "u"\npassword = "a"',
            't.toml:3: access.users.0.password: unknown key; did you mean "password_hash"',
        ),
        ("[[access.rules]]\nallow = 1", "t.toml:2: access.rules.0.allow: expected true or false, got 1"),
        ("[[access.rules]]\nallow = true\ntopics = [\n'a',\n'a#']", 't.toml:5: access.rules.0.topics.1: "#" must'),
        ("[[access.rules]]\nallow = true\naddress = '10.0'", "t.toml:3: access.rules.0.address: '10.0' does not"),
        ("[[access.rules]]\nallow = true\nusername = ''", "t.toml:3: access.rules.0.username: matches no client"),
        ('[access.users]\nann = "x"', "t.toml:1: access.users: expected tables [[access.users]]"),
        ("[access.rules]\nallow = true", "t.toml:1: access.rules: expected tables [[access.rules]]"),
        ("allow_anonymous = true", "t.toml:1: allow_anonymous: belongs in [zones.external] or in a listener"),
        ("[zones]\nmax_qos = 1", "t.toml:2: zones.max_qos: belongs in [zones.external] or in a listener"),
        ('[zones.z]\nallow_anonymous = "yes"', 't.toml:2: zones.z.allow_anonymous: expected true or false, got "yes"'),
        (
            "[zones.z]\nmessage_rate = 100",
            "t.toml:2: zones.z.message_rate: expected [amount, seconds], both more than 0, got 100",
        ),
        ("[node]\nname = taipan@x", "t.toml:2: Invalid value; text requires quotes"),
        ("[access]\nhash_threads = 0", "t.toml:2: access.hash_threads: expected a whole number from 1 to 64, got 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text).startswith(message)


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("node.nme", "x", 'node.nme: unknown key; did you mean "name"?'),
        ("nodes.name", "x", 'nodes: unknown key; did you mean "node"?'),
        ("listeners.0.max_qos", "5", "listeners.0.max_qos: expected a whole number from 0 to 2, got 5"),
        ("listeners.5.bind", "x", '"5" is not an index of listeners (0 to 2)'),
        ("listeners.x.bind", "x", '"x" is not an index of listeners (0 to 2)'),
        ("listeners.-1.bind", "x", '"-1" is not an index of listeners (0 to 2)'),
        ("listeners.2.bind", "[::1]:9", 'listeners.2: needs the key "name"'),
        ("listeners.0.bind.x", "1", "listeners.0.bind is a value, not a table"),
        ("node", "x", 'node: expected a table, got "x"'),
        ("access.rules.0.topics.0", "a#", 'access.rules.0.topics.0: "#" must be alone in the last level'),
        ("", "x", '"": unknown key'),
    ],
)
def test_overrides_are_named_too(key: str, value: str, message: str) -> None:
    extra = ["access.rules.0.allow=true"]
    with pytest.raises(ConfigError) as caught:
        load(overrides=[*extra, f"{key}={value}"], environ={})
    assert str(caught.value) == f"--set {key}: {message}"
    name = "TAIPAN__" + key.upper().replace(".", "__")
    with pytest.raises(ConfigError) as caught:
        load(environ={"TAIPAN__ACCESS__RULES__0__ALLOW": "true", name: value})
    assert str(caught.value) == f"environment variable {name}: {message}"


def test_every_mistake_is_told(tmp_path: Path) -> None:
    text = (
        '[node]\nname = "x"\nnam = "a@b"\ndata_dir = 3\n[durability]\nlevel = "dsk"\n[[access.users]]\nusername = 1\n'
        "[[access.users]]\nusername = 2\n[zones.z]\nmax_qos = 3\nidle_timeout = 0\n"
        + LISTENER
        + 'zone = "y"\nmax_qos = 4'
    )
    assert refusal(tmp_path, text).split("\n") == [
        't.toml:2: node.name: expected <name>@<host>, got "x"',
        't.toml:3: node.nam: unknown key; did you mean "name"?',
        "t.toml:4: node.data_dir: expected a string, got 3",
        't.toml:6: durability.level: expected one of "memory", "disk", got "dsk"',
        "t.toml:8: access.users.0.username: expected a string, got 1",
        "t.toml:10: access.users.1.username: expected a string, got 2",
        "t.toml:12: zones.z.max_qos: expected a whole number from 0 to 2, got 3",
        "t.toml:13: zones.z.idle_timeout: expected a number of seconds, more than 0, got 0",
        't.toml:18: listeners.0.zone: no zone "y"',
        "t.toml:19: listeners.0.max_qos: expected a whole number from 0 to 2, got 4",
    ]


def test_types_values_and_what_is_between_keys_are_told_together(tmp_path: Path) -> None:
    text = (
        '[[listeners]]\nname = "a b"\ntype = "tcp"\nbind = "1883"\npath = "/x"\nmax_connections = 0\n'
        'mountpoint = "a/+"\n[[listeners]]\nname = "c"\ntype = "ws"\nbind = "127.0.0.1:1"\nmountpoint = "#"\n'
        'compress = 1\n[[listeners]]\nname = "d e"\ntype = "tcp"\nbind = "1884"\npath = "/x"\n'
    )
    assert refusal(tmp_path, text).split("\n") == [
        "t.toml:2: listeners.0.name: expected 1 to 64 letters, digits, '_', '-' or '.', got \"a b\"",
        "t.toml:4: listeners.0.bind: expected host:port or [v6]:port with a port from 0 to 65535",
        "t.toml:6: listeners.0.max_connections: expected a whole number, 1 or more, got 0",
        't.toml:7: listeners.0.mountpoint: expected a topic prefix without + and #, got "a/+"',
        't.toml:12: listeners.1.mountpoint: expected a topic prefix without + and #, got "#"',
        "t.toml:13: listeners.1.compress: expected true or false, got 1",
        "t.toml:15: listeners.2.name: expected 1 to 64 letters, digits, '_', '-' or '.', got \"d e\"",
        "t.toml:17: listeners.2.bind: expected host:port or [v6]:port with a port from 0 to 65535",
        "t.toml:18: listeners.2.path: only ws and wss listeners accept this key",
    ]


def test_not_more_than_twenty_mistakes_are_told(tmp_path: Path) -> None:
    lines = refusal(tmp_path, "[node]\n" + "".join(f"k{number} = 1\n" for number in range(25))).split("\n")
    assert len(lines) == 21
    assert lines[-1] == "and 5 more"


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    said = "t.toml:1: begins with a byte order mark (BOM); save it as UTF-8 without one"
    assert refusal(tmp_path, "\ufeff[node]\nname = 3") == said


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("0.0.0.0:1", "127.0.0.1:1", True),
        ("127.0.0.2:1", "0.0.0.0:1", True),
        ("localhost:1", "127.0.0.1:1", True),
        ("localhost:1", "[::]:1", True),
        ("[::]:1", "[::1]:1", True),
        ("[0:0::1]:1", "[::1]:1", True),
        ("example.org:1", "Example.org:1", True),
        ("[::]:1", "0.0.0.0:1", False),
        ("127.0.0.2:1", "127.0.0.1:1", False),
        ("0.0.0.0:1", "127.0.0.1:2", False),
        ("0.0.0.0:0", "127.0.0.1:0", False),
        ("example.org:1", "127.0.0.1:1", False),
    ],
)
def test_binds_that_overlap(one: str, other: str, same: bool) -> None:
    assert binds_overlap(one, other) is same


def test_overlapping_binds_are_refused(tmp_path: Path) -> None:
    said = "listeners.1.bind: 127.0.0.1:1 is already the address of listeners.0"
    text = LISTENER + LISTENER.replace('"a"', '"b"').replace("127.0.0.1", "0.0.0.0")
    assert refusal(tmp_path, text) == f"t.toml:8: {said}"
    said = "t.toml:6: management.bind: 127.0.0.1:1 is already the address of listeners.0"
    assert refusal(tmp_path, LISTENER + '[management]\nbind = "localhost:1"') == said
    read(tmp_path, LISTENER + '[management]\nbind = "localhost:1"\nenabled = false')


@pytest.mark.parametrize(
    "text, overrides, listens",
    [
        ("", [], True),
        ("[management]\nenabled = false", [], False),
        ('[management]\nenabled = false\n[dashboard]\nbind = "127.0.0.1:9"', [], False),
        ("[management]\nenabled = false\n[dashboard]\nenabled = true", [], True),
        ("[dashboard]\nenabled = true", ["management.enabled=false"], True),
        ("", ["management.enabled=false"], False),
        ("[dashboard]\nenabled = false", [], False),
        ("[management]\nenabled = false\n[dashboard]\non_management = true", [], False),
    ],
)
def test_without_management_there_is_a_dashboard_only_where_it_is_asked_for(
    tmp_path: Path, text: str, overrides: list[str], listens: bool
) -> None:
    assert read(tmp_path, text, *overrides).dashboard.enabled is listens
    if not listens:  # nor has it a port that something else cannot have
        read(tmp_path, text + LISTENER.replace("[[", "\n[[").replace(":1", ":18083"), *overrides)


def test_listeners_of_different_types_may_share_a_name(tmp_path: Path) -> None:
    text = LISTENER + LISTENER.replace("tcp", "ws").replace(":1", ":2")
    assert [(each.name, each.type) for each in read(tmp_path, text).broker.listeners] == [("a", "tcp"), ("a", "ws")]


def test_an_override_without_a_value() -> None:
    with pytest.raises(ConfigError, match=r'--set "node": expected key\.path=value'):
        load(overrides=["node"], environ={})


def test_a_mistake_in_the_file_is_named_there_beside_overrides(tmp_path: Path) -> None:
    message = refusal(tmp_path, '[node]\nname = "x"', "node.data_dir=d")
    assert message.startswith("t.toml:2: node.name")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(str(tmp_path / "absent.toml"), environ={})
    with pytest.raises(ConfigError, match="directory"):
        load(str(tmp_path), environ={})
    (tmp_path / "latin.toml").write_bytes(b'a = "\xff"')
    with pytest.raises(ConfigError, match="not UTF-8 at byte 5"):
        load(str(tmp_path / "latin.toml"), environ={})
    (tmp_path / "deep.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(ConfigError):
        load(str(tmp_path / "deep.toml"), environ={})


@pytest.mark.parametrize(
    "bind, expected",
    [("127.0.0.1:1883", ("127.0.0.1", 1883)), ("[::1]:0", ("::1", 0)), ("a.b-c:65535", ("a.b-c", 65535))],
)
def test_parse_bind(bind: str, expected: tuple[str, int]) -> None:
    assert parse_bind(bind) == expected


@pytest.mark.parametrize(
    "bind",
    ["", "1883", ":1883", "h:", "h:65536", "h:-1", "h:+1", "::1:1883", "[]:1", "h h:1", "h:1\n", "h:١", "h:000001"],
)
def test_bad_binds(bind: str) -> None:
    with pytest.raises(ValueError):
        parse_bind(bind)


def test_port_0_may_be_there_twice() -> None:
    load(overrides=["listeners.0.bind=127.0.0.1:0", "listeners.1.bind=127.0.0.1:0"], environ={})


SCALARS = st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({}) | st.just([{}])
STEPS = st.sampled_from(
    ["node", "name", "listeners", "0", "1", "2", "tls", "zones", "external", "message_rate", "access", "users", "rules",
     "topics", "queue_priorities", "server_names", "x", "bind", "type", "allow", "max_qos", "address", "log", "level"]
)  # fmt: skip


@given(st.lists(st.tuples(st.lists(STEPS, min_size=1, max_size=5), SCALARS), max_size=4))
def test_whatever_is_set_there_is_one_line_or_settings(overrides: list[tuple[list[str], object]]) -> None:
    said = ""
    try:
        load(overrides=[f"{'.'.join(keys)}={value}" for keys, value in overrides], environ={})
    except ConfigError as error:
        said = str(error)
    assert all(line.isprintable() for line in said.split("\n"))


def test_rules_for_one_listener_and_for_anonymous_clients(tmp_path: Path) -> None:
    rule = '[[access.rules]]\nallow = false\nlistener = "{}"\n'
    second = LISTENER.replace('"tcp"', '"ws"').replace(":1", ":2")
    (found,) = read(tmp_path, LISTENER + second + rule.format("ws:a")).broker.access.rules
    assert (found.listener, found.anonymous) == ("ws:a", False)
    told = refusal(tmp_path, LISTENER + rule.format("b"))
    assert told == 't.toml:7: access.rules.0.listener: no listener "b"'
    told = refusal(tmp_path, '[[access.rules]]\nallow = true\nanonymous = true\nusername = "ann"\n')
    assert told == "t.toml:3: access.rules.0.anonymous: an anonymous client has no username: omit one of the two"


def _alternatives() -> list[tuple[str, object]]:
    """Every setting that may be a text or something else, by its type."""
    found: list[tuple[str, object]] = []

    def walk(kind: object, path: str) -> None:
        struct = struct_of(kind)
        if struct is not None:
            for field in fields_of(struct):
                walk(field.type, f"{path}.{field.name}")
            return
        others = set(union_members(kind)) - {type(None)}
        if str in others and len(others) > 1:
            found.extend((path, each) for each in others - {str})

    for root, kind in SETTING_TYPES.items():
        walk(kind, root)
    return found


def test_what_may_be_a_text_may_be_set_as_what_else_it_may_be() -> None:
    """Containers set everything as text."""
    samples: dict[object, str] = {int: "100000000", float: "0.5", bool: "true"}
    assert ("limits.memory", int) in _alternatives()
    for path, kind in _alternatives():
        document = ConfigDocument(SETTING_TYPES, VALUE_RULES)
        document.override(path.split("."), samples[kind], "here", Origin("command line", "here"))
        value: Any = document.data
        for key in path.split("."):
            value = value[key]
        assert type(value) is kind, path


def test_the_file_is_bounded_and_read_again_only_where_that_cannot_wait(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="/dev/zero: larger than 16 MiB"):
        load("/dev/zero", environ={})
    fifo = tmp_path / "fifo.toml"
    os.mkfifo(fifo)
    for file, why in ((fifo, "not a regular file"), (Path("/dev/zero"), "not a regular file"), (Path("-"), "again")):
        with pytest.raises(ConfigError, match=why):
            read_configuration(str(file), environ={}, again=True)
    writer = threading.Thread(target=fifo.write_text, args=('[node]\nname = "piped@h"',), daemon=True)
    writer.start()  # a start may read what another program writes, as in --config <(program)
    assert load(str(fifo), environ={}).broker.node.name == "piped@h"
    writer.join()
