"""taipan migrate mosquitto: what becomes of each line, and that nothing is written half."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.config import BrokerSettings, ListenerTlsSettings
from taipan.management.configuration.config import load
from taipan.management.migrate import mosquitto
from taipan.management.migrate.mosquitto import migrate_mosquitto
from taipan.management.migrate.mosquitto_files import without_mount_point
from taipan.management.migrate.output import Migration
from taipan.management.node import main
from taipan.management.operations.backup.import_plan import read_plan
from tests.broker.access.test_foreign_hashes import mosquitto6, mosquitto7
from tests.support.certificates import Certificates
from tests.support.mosquitto_db import DbWriter
from tests.support.psk import PskFile, needs_psk, psk_works

__all__ = ["psk_works"]

ROOT = Path(__file__).parents[3]
HASH6 = "$6$SShyOTRkaHFmOTgz$" + "A" * 85 + "A=="
HASH7 = "$7$101$SShyOTRkaHFmOTgz$" + "B" * 85 + "A=="


def conf(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mosquitto.conf"
    path.write_text(text.replace("DIR", str(tmp_path)))
    return path


def said(migration: Migration, tmp_path: Path, *outcomes: Any) -> list[str]:
    lines = migration.report.lines(migration.report.of(*outcomes))
    return [line.replace(f"{tmp_path}/", "") for line in lines]


def settings(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> BrokerSettings:
    into = tmp_path / "into"
    status = main(["migrate", "mosquitto", str(conf(tmp_path, text)), "--into", str(into)])
    assert status == 0, capsys.readouterr()
    assert main(["check", str(into / "taipan.toml")]) == 0
    return load(str(into / "taipan.toml"), environ={}).broker


def test_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
# a comment
max_inflight_messages 7
max_inflight_bytes 1000
max_queued_messages 9
max_queued_bytes 10
queue_qos0_messages true
upgrade_outgoing_qos true
max_packet_size 5000
max_keepalive 600
persistent_client_expiration 2w
retain_available false
check_retain_source false
memory_limit 100000000
sys_interval 10
log_type debug
autosave_interval 1800
something_else 1
listener 1883 10.0.0.1
max_connections 50
max_qos 1
max_topic_alias 3
mount_point site/
use_username_as_clientid true
set_tcp_nodelay true
"""
    found = settings(tmp_path, text, capsys)
    (listener,), (zone,) = found.listeners, found.listener_zones
    assert (listener.type, listener.bind, listener.max_connections) == ("tcp", "10.0.0.1:1883", 50)
    assert (zone.max_inflight, zone.max_queued_messages, zone.max_queued_bytes) == (7, 9, 10)
    assert (zone.queue_qos0, zone.upgrade_qos, zone.max_packet_size, zone.server_keep_alive) == (True, True, 5000, 600)
    assert (zone.session_expiry_interval, zone.retain_available) == (14 * 86_400, False)
    assert (zone.max_qos, zone.max_topic_alias, zone.mountpoint, zone.use_username_as_client_id) == (
        1,
        3,
        "site/",
        True,
    )
    assert zone.allow_anonymous is False
    assert (found.retained.check_source, found.sys_topics.interval, found.limits.memory) == (False, 10, 100_000_000)
    assert found.sys_topics.mosquitto_names
    told = capsys.readouterr().out
    assert "mosquitto.conf:4: left out: max_inflight_bytes 1000: zones.external.max_inflight limits" in told
    assert "mosquitto.conf:17: left out: autosave_interval 1800: every change is on disk" in told
    assert "mosquitto.conf:18: left out: something_else 1: not known" in told
    head = (tmp_path / "into" / "taipan.toml").read_text().split("\n[")[0]
    assert "something_else 1" in head and "max_queued_messages" not in head


def test_a_byte_order_mark_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = settings(tmp_path, "\ufeffmax_queued_messages 5\n", capsys)
    assert found.zones["external"].max_queued_messages == 5


def test_without_a_listener_it_is_loopback_for_everybody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = settings(tmp_path, "max_queued_messages 5\n", capsys)
    assert (found.sys_topics.mosquitto_names, found.sys_topics.interval) == (True, 10)
    assert [
        (each.bind, zone.allow_anonymous) for each, zone in zip(found.listeners, found.listener_zones, strict=True)
    ] == [("127.0.0.1:1883", True)]


def test_tls_and_websockets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Certificates(tmp_path)
    certfile, keyfile = authority.issue("localhost")
    text = f"""
listener 8883 127.0.0.1
certfile {certfile}
keyfile {keyfile}
cafile {authority.ca}
require_certificate true
use_identity_as_username true
tls_version tlsv1.3
capath /nowhere
listener 9001 127.0.0.1
protocol websockets
http_dir /srv
listener 9443 127.0.0.1
protocol websockets
certfile {certfile}
keyfile {keyfile}
listener 8884
psk_hint here
use_identity_as_username true
listener 0 /run/mosquitto.sock
"""
    found = settings(tmp_path, text, capsys)
    tls, ws, wss, local = found.listeners
    assert tls.tls is not None and wss.tls is not None
    assert (tls.tls.verify, tls.tls.peer_cert_as_username, tls.tls.min_version) == ("required", "cn", "1.3")
    assert (ws.type, wss.type, wss.tls.verify) == ("ws", "wss", "none")
    assert (ws.path, wss.path) == ("*", "*")
    assert (local.type, local.name, local.bind) == ("unix", "unix", "/run/mosquitto.sock")
    told = capsys.readouterr().out
    assert (
        "listener 8884: it has a psk_hint and no psk_file, so a plugin has the keys" in told
        and "listener 0 /run/mosquitto.sock" in told
        and "http_dir /srv: no files are served" in told
    )


@needs_psk
def test_pre_shared_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certfile, keyfile = Certificates(tmp_path).issue("localhost")
    file = PskFile(tmp_path).path
    text = f"""
psk_file {file}
allow_anonymous false
listener 8884 127.0.0.1
psk_hint plant 4
use_identity_as_username true
ciphers PSK
tls_version tlsv1.2
require_certificate false
listener 8885 127.0.0.1
protocol websockets
psk_hint plant 5
listener 8883 127.0.0.1
certfile {certfile}
keyfile {keyfile}
psk_hint both
listener 1883 127.0.0.1
"""
    found = settings(tmp_path, text, capsys)
    named, plain, certified, open_one = (each.tls for each in found.listeners)
    assert named == ListenerTlsSettings(
        psk_file=str(file), psk_hint="plant 4", psk_identity_as_username=True, ciphers="PSK"
    )
    assert plain == ListenerTlsSettings(psk_file=str(file), psk_hint="plant 5")
    assert certified is not None and not certified.psk_file and open_one is None
    assert [each.type for each in found.listeners] == ["ssl", "wss", "ssl", "tcp"]
    told = capsys.readouterr().out
    assert f"psk_file {file}: listeners.tls.psk_file" in told
    assert "psk_hint both: a listener has either certificates or pre-shared keys" in told
    assert "require_certificate false: it is about certificates" in told


@needs_psk
def test_pre_shared_keys_of_single_listeners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = PskFile(tmp_path).path
    text = f"""
per_listener_settings true
listener 8884 127.0.0.1
psk_hint here
psk_file {file}
listener 1884 127.0.0.1
psk_file {file}
"""
    found = settings(tmp_path, text, capsys)
    assert found.listeners[0].tls == ListenerTlsSettings(psk_file=str(file), psk_hint="here")
    assert found.listeners[1].type == "tcp"  # as in Mosquitto: a psk_hint switches it on
    file.write_text("pump-7:5ecre7\n")
    assert main(["migrate", "mosquitto", str(tmp_path / "mosquitto.conf"), "--into", str(tmp_path / "again")]) != 0
    said_now = "".join(capsys.readouterr())
    assert "line 1: the key is not an even number of hexadecimal digits" in said_now and "5ecre7" not in said_now


def test_users(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text(f"# people\nann:{HASH6}\nbob:{HASH7}\nplain:secret\nodd:$5$x\nnothing\nann:{HASH7}\n")
    migration = migrate_mosquitto(conf(tmp_path, "listener 1883\npassword_file DIR/pw\n"))
    assert [(user.name, user.password[:12]) for user in migration.plan.users] == [
        ("ann", "pbkdf2$sha51"),
        ("bob", "pbkdf2$sha51"),
    ]
    assert said(migration, tmp_path, "left_out") == [
        "pw:4: left out: user plain: a plain password, not its hash; give it a password: taipan-ctl users add",
        migration.report.of("left_out")[1].place.replace(f"{tmp_path}/", "")
        + f": left out: user odd: {migration.report.of('left_out')[1].why}",
        "pw:6: left out: user nothing: the line is not name:hash, and Mosquitto ignores it as well",
    ]


def test_a_published_default_password_does_not_come_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"ann:{mosquitto7(b'mine')}", f"bob:{mosquitto7(b'public')}", f"cora:{mosquitto6(b'public')}"]
    slow = f"$7$2000001${'A' * 16}${'A' * 86}=="
    (tmp_path / "pw").write_text("\n".join([*lines, f"dora:{slow}", ""]))
    file = conf(tmp_path, "listener 1883 127.0.0.1\npassword_file DIR/pw\n")
    assert main(["migrate", "mosquitto", str(file), "--into", str(tmp_path / "into")]) == 0
    told = capsys.readouterr().out
    for name in ("bob", "cora"):
        assert f"left out: user {name}: its password is EMQX's published default" in told
    assert "left out: user dora: PBKDF2 requires 1 to 2000000 iterations" in told
    _, plan = read_plan((tmp_path / "into" / "data" / "import.plan").read_bytes())
    assert [user.name for user in plan.users] == ["ann"]


def test_rules_in_mosquittos_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "acl").write_text(
        "topic read a/#\n\nuser ann\ntopic b\ntopic deny b/x\npattern write c/%u\npattern deny +/no\n"
        "user bob\ntopic write b/c d\n"
    )
    found = settings(tmp_path, "listener 1883\nallow_anonymous true\nacl_file DIR/acl\n", capsys)
    assert found.access.no_match == "deny" and found.listener_zones[0].subscribe_check == "delivery"
    assert "changed: subscriptions wider than the rules: accepted as in Mosquitto" in capsys.readouterr().out
    rules = [(each.allow, each.username, each.anonymous, each.action, each.topics) for each in found.access.rules]
    assert rules == [
        (False, "ann", False, "pubsub", ["b/x"]),
        (True, "ann", False, "pubsub", ["b"]),
        (True, "bob", False, "publish", ["b/c d"]),
        (True, None, True, "subscribe", ["a/#"]),
        (False, None, False, "pubsub", ["+/no"]),
        (True, None, False, "publish", ["c/%u"]),
    ]


def test_listeners_with_settings_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who is a user of one listener may nothing at the others, and rules of a listener count there."""
    (tmp_path / "one").write_text(f"ann:{HASH6}\nboth:{HASH6}\nsame:{HASH7}\n")
    (tmp_path / "two").write_text(f"bob:{HASH7}\nboth:{HASH7}\nsame:{HASH7}\n")
    (tmp_path / "acl").write_text("topic a\n")
    text = """
listener 1 127.0.0.1
password_file DIR/one
acl_file DIR/acl
per_listener_settings true
listener 2 127.0.0.1
password_file DIR/two
allow_anonymous true
"""
    found = settings(tmp_path, text, capsys)
    assert [zone.allow_anonymous for zone in found.listener_zones] == [False, True]
    assert [each.name for each in found.listeners] == ["tcp", "tcp-2"]
    rules = [(each.allow, each.username, each.anonymous, each.listener, each.topics) for each in found.access.rules]
    assert sorted(rules[:3], key=str) == [
        (False, "ann", False, "tcp-2", []),
        (False, "bob", False, "tcp", []),
        (False, "both", False, "tcp-2", []),
    ]
    assert rules[3:] == [(True, None, True, "tcp", ["a"]), (True, None, False, "tcp-2", [])]
    assert "two:2: left out: user both: another password of this username applies" in capsys.readouterr().out


def test_a_plugin_that_decided_leaves_nobody_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "listener 1883\nallow_anonymous true\nplugin /usr/lib/dynamic_security.so\nplugin_opt_config_file /x\n"
    found = settings(tmp_path, text, capsys)
    assert found.listener_zones[0].allow_anonymous is False and found.access.no_match == "deny"


def test_bridges(tmp_path: Path) -> None:
    text = """
listener 1883
connection cloud
address broker.example:8883 other.example
remote_clientid plant
remote_username u
remote_password p
bridge_protocol_version mqttv50
bridge_insecure true
notifications false
topic # out 1 plant/ sites/7/
topic orders/# in 2 from/ sites/7/
topic x both 0
topic "" in 0 here there
"""
    migration = migrate_mosquitto(conf(tmp_path, text))
    assert not migration.report.failed, said(migration, tmp_path, "wrong")
    (resource,) = migration.plan.resources
    config = resource.config
    assert (resource.id, config["address"], config["clientid"]) == ("resource:cloud", "broker.example:8883", "plant")
    assert (config["proto_ver"], config["username"], config["password"]) == ("mqttv5", "u", "p")
    assert [(each["remote_topic"], each["local_topic"], each["remote_prefix"]) for each in config["ingress"]] == [
        ("sites/7/orders/#", "from/${topic}", "sites/7/"),
        ("there", "here${topic}", "there"),
    ]
    assert config["bridge_mode"] is False
    first, both = migration.plan.engine_rules
    assert first.rawsql == 'SELECT payload, substr(topic, 6) as target FROM "plant/#"'
    assert first.actions[0].params["forward_topic"] == "sites/7/${target}"
    assert both.rawsql == 'SELECT payload, topic as target FROM "x"'
    assert any(
        "topic x both 0: messages are only sent, not fetched" in line for line in said(migration, tmp_path, "changed")
    )


WRONG = {
    "listener": ("listener nowhere\n", "mosquitto.conf:1: wrong: listener nowhere: expected a number from 0 to 65535"),
    "flag": (
        "listener 1\nallow_anonymous maybe\n",
        "mosquitto.conf:2: wrong: allow_anonymous maybe: expected true or false",
    ),
    "number": ("max_queued_messages -1\n", "mosquitto.conf:1: wrong: max_queued_messages -1"),
    "expiry": ("persistent_client_expiration 3\n", "mosquitto.conf:1: wrong: persistent_client_expiration 3"),
    "file": ("listener 1\npassword_file DIR/none\n", "none: wrong: password file: No such file or directory"),
    "include": ("include_dir DIR/none\n", "mosquitto.conf:1: wrong: include_dir DIR/none: No such file or directory"),
    "utf-8": ("# \udcff\n", "mosquitto.conf:1: wrong: configuration: not UTF-8"),
    "acl": ("listener 1\nacl_file DIR/acl\n", "acl:2: wrong: topic a/#/b"),
    "keyfile": ("listener 1\ncertfile DIR/acl\n", "mosquitto.conf:2: wrong: certfile: keyfile is missing"),
    "bridge": ("listener 1\nconnection x\ntopic a\n", "mosquitto.conf:2: wrong: connection x: no address"),
    "database": ("listener 1\npersistence true\npersistence_location DIR/\n", "mosquitto.db: wrong: persistence file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_told_and_nothing_is_written(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, line = WRONG[case]
    (tmp_path / "acl").write_text("topic b\ntopic a/#/b\n")
    (tmp_path / "mosquitto.db").write_bytes(b"something else")
    path = tmp_path / "mosquitto.conf"
    path.write_bytes(text.replace("DIR", str(tmp_path)).encode("utf-8", "surrogateescape"))
    before = sorted(os.listdir(tmp_path))
    assert main(["migrate", "mosquitto", str(path), "--into", str(tmp_path / "into")]) == 2
    out, err = capsys.readouterr()
    assert line.replace("DIR/", "") in out.replace(f"{tmp_path}/", "")
    assert "nothing was written" in err and "Traceback" not in err
    assert sorted(os.listdir(tmp_path)) == before


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = conf(tmp_path, "listener 1883\n")
    into = tmp_path / "into"
    into.mkdir()
    (into / "mine").write_text("x")
    assert main(["migrate", "mosquitto", str(path), "--into", str(into)]) == 2
    assert "is not empty; nothing was overwritten" in capsys.readouterr().err
    assert os.listdir(into) == ["mine"]
    (into / "mine").unlink()
    assert main(["migrate", "mosquitto", str(path), "--into", str(into)]) == 0
    assert sorted(os.listdir(into)) == ["data", "taipan.toml"]
    assert (into / "taipan.toml").stat().st_mode & 0o077 == 0
    assert main(["migrate", "mosquitto", str(tmp_path / "absent.conf"), "--into", str(tmp_path / "x")]) == 2


def test_the_report_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = conf(tmp_path, "listener 1883\nuser nobody\n")
    assert main(["migrate", "mosquitto", str(path), "--into", str(tmp_path / "into"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["written"] == str(tmp_path / "into") and told["error"] == ""
    assert {
        "outcome": "left_out",
        "place": f"{path}:2",
        "what": "user nobody",
        "why": mosquitto._NOT_NEEDED["user"],
    } in told["lines"]
    assert told["counts"]["left_out"] == 1
    assert main(["migrate", "mosquitto", str(path), "--into", str(tmp_path / "into"), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["written"] is None and "not empty" in told["error"]


def test_a_damaged_file_gives_what_is_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = DbWriter(5).message(1, "a", b"x", 1, True).client("c").subscription("c", "a", 1).retained(1).retained(2)
    (tmp_path / "mosquitto.db").write_bytes(made.bytes()[:-4])
    found = settings(tmp_path, "listener 1883\npersistence true\npersistence_location DIR/\n", capsys)
    assert found.durability.level == "disk"
    told = capsys.readouterr().out
    assert re.search(r"mosquitto\.db:byte \d+: left out: 12 bytes: the retained message is cut off", told)
    assert "format 5: 1 retained messages, 1 sessions with 1 subscriptions" in told


def test_filters_that_would_be_exclusive_or_shared_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In Mosquitto they are for topics below ``$exclusive/`` and ``$queue/``, which all clients with them receive."""
    made = DbWriter(6).client("c").client("d")
    for client in ("c", "d"):
        made.subscription(client, "$exclusive/pump", 1).subscription(client, "$queue/pump", 1)
    (tmp_path / "mosquitto.db").write_bytes(made.subscription("c", "$share/g/pump", 1).bytes())
    settings(tmp_path, "listener 1883\npersistence true\npersistence_location DIR/\n", capsys)
    told = capsys.readouterr().out
    assert "2 sessions with 1 subscriptions" in told
    assert told.count("left out: subscription $exclusive/pump: an ordinary filter in Mosquitto") == 2
    assert told.count("left out: subscription $queue/pump: an ordinary filter in Mosquitto") == 2


def test_the_page_has_every_key() -> None:
    page = (ROOT / "docs" / "coming-from-mosquitto.md").read_text("utf-8")
    from taipan.management.migrate import mosquitto_bridges

    keys = {*mosquitto._NOT_NEEDED, *mosquitto._SECURITY, *mosquitto._PSK, *mosquitto._PLUGINS, *mosquitto._LISTENER}
    keys |= {key for key in (*mosquitto_bridges._KEYS, *mosquitto_bridges._LEFT) if key != "topic"}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_the_commands_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "coming-from-mosquitto.md").read_text("utf-8")
    path = conf(tmp_path, "listener 1883\nallow_anonymous true\n")
    commands = re.findall(r"(?m)^ *taipan (migrate .+|check .+)$", page)
    assert len(commands) == 3
    for command in commands:
        words = [
            str(path) if word.startswith("/etc/") else re.sub(r"^/(tmp|srv)", str(tmp_path), word)
            for word in command.split()
        ]
        assert main(words) == 0, capsys.readouterr()


def test_a_certificate_that_taipan_check_would_not_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certfile, keyfile = Certificates(tmp_path).issue("localhost", expired=True)
    path = conf(tmp_path, f"listener 8883 127.0.0.1\ncertfile {certfile}\nkeyfile {keyfile}\n")
    assert main(["migrate", "mosquitto", str(path), "--into", str(tmp_path / "into")]) == 2
    told = capsys.readouterr().out
    assert told.startswith(f"{path}:2: wrong: certfile {certfile}: the certificate in") and "expired on" in told
    assert not (tmp_path / "into").exists()


def test_a_listener_without_an_address_is_one_of_both_families(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Mosquitto has it; a node that listens at [::] is reached by IPv6 alone."""
    monkeypatch.setattr(mosquitto, "_has_ipv6", lambda: True)
    (tmp_path / "acl").write_text("topic a\n")
    text = "per_listener_settings true\nlistener 1883\nmax_connections 5\nacl_file DIR/acl\n"
    text += "listener 1884\nsocket_domain ipv6\nlistener 1885 localhost\n"
    found = settings(tmp_path, text, capsys)
    assert [(each.name, each.bind, each.max_connections) for each in found.listeners[:2]] == [
        ("tcp", "0.0.0.0:1883", 5),
        ("tcp-ipv6", "[::]:1883", 5),
    ]
    assert [each.bind for each in found.listeners[2:]] == ["[::]:1884", "127.0.0.1:1885"]
    assert [rule.listener for rule in found.access.rules if rule.topics == ["a"]] == ["tcp", "tcp-ipv6"]
    told = capsys.readouterr().out
    assert told.count("max_connections 5") == 2 and "of IPv4 and of IPv6, counted separately" in told

    monkeypatch.setattr(mosquitto, "_has_ipv6", lambda: False)
    shutil.rmtree(tmp_path / "into")
    found = settings(tmp_path, "listener 1883\n", capsys)
    assert [each.bind for each in found.listeners] == ["0.0.0.0:1883"]


def test_an_address_alone_is_no_listener_for_everybody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mosquitto lets anonymous clients in on its own only where nothing says where it listens."""
    found = settings(tmp_path, "bind_address 127.0.0.1\n", capsys)
    assert found.listener_zones[0].allow_anonymous is False


def test_a_file_that_is_included_includes_no_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "e").mkdir()
    (tmp_path / "d" / "a.conf").write_text(f"include_dir {tmp_path}/e\n")
    (tmp_path / "e" / "x.conf").write_text("allow_anonymous true\n")
    found = settings(tmp_path, "include_dir DIR/d\nlistener 18831\n", capsys)
    assert found.listener_zones[0].allow_anonymous is False
    assert "a.conf:1: left out: include_dir" in capsys.readouterr().out


def test_files_are_included_in_mosquittos_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d").mkdir()
    for name, most in ("B.conf", 3), ("b.conf", 4), ("a.conf", 2), ("A.conf", 1), (".conf", 9):
        (tmp_path / "d" / name).write_text(f"max_inflight_messages {most}\n")
    assert settings(tmp_path, "listener 1883\ninclude_dir DIR/d\n", capsys).listener_zones[0].max_inflight == 4
    (tmp_path / "d" / "b.conf").unlink()
    (tmp_path / "d" / "B.conf").unlink()
    migration = migrate_mosquitto(conf(tmp_path, "listener 1883\ninclude_dir DIR/d\n"))
    assert migration.zone["max_inflight"] == 2


def test_names_with_wildcards_have_no_patterns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mosquitto denies, after a user's own topics, everything to a name with +, # or /."""
    (tmp_path / "pw").write_text(f"ann:{HASH6}\na/b:{HASH6}\n")
    (tmp_path / "acl").write_text("user a/b\ntopic own\npattern deny x/%u\npattern readwrite #\n")
    found = settings(tmp_path, "listener 1883\npassword_file DIR/pw\nacl_file DIR/acl\n", capsys)
    assert [(each.allow, each.username, each.topics) for each in found.access.rules] == [
        (True, "a/b", ["own"]),
        (False, "a/b", []),
        (False, None, ["x/%u"]),
        (True, None, ["#"]),
    ]
    assert "acl:3: changed: patterns: Mosquitto ignores pattern rules" in capsys.readouterr().out


def test_rules_are_without_the_mount_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mosquitto's see topics with it: a denial has to hit here, too."""
    (tmp_path / "acl").write_text(
        "user ann\ntopic deny site/secret/#\ntopic other/x\ntopic read +/a\ntopic #\npattern write site/%c\n"
    )
    text = "allow_anonymous true\nacl_file DIR/acl\nlistener 1883\nmount_point site/\nlistener 1884\n"
    found = settings(tmp_path, text, capsys)
    rules = [(each.allow, each.topics[0]) for each in found.access.rules if each.listener == "tcp"]
    assert rules == [(False, "secret/#"), (True, "a"), (True, "#"), (True, "%c")]
    rules = [(each.allow, each.topics[0]) for each in found.access.rules if each.listener == "tcp-1884"]
    assert rules == [
        (False, "site/secret/#"),
        (True, "other/x"),
        (True, "+/a"),
        (True, "#"),
        (True, "site/%c"),
    ]


@pytest.mark.parametrize(
    ("topic", "mount", "left"),
    [
        ("a/b", "", "a/b"),
        ("a/b", "a/", "b"),
        ("a/b/#", "a/b/", "#"),
        ("a", "a/", None),
        ("#", "a/b/", "#"),
        ("+/+/x", "a/b/", "x"),
        ("b/x", "a/", None),
        ("ab/x", "a", "b/x"),
        ("+/x", "a", "+/x"),
        ("#", "a", "#"),
        ("b/x", "a", None),
        ("+/x", "$a/", None),
        ("a/%c/x", "a/", "%c/x"),
    ],
)
def test_a_filter_below_a_mount_point(topic: str, mount: str, left: str | None) -> None:
    assert without_mount_point(topic, mount) == left


def test_a_placeholder_within_a_mount_point_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "acl").write_text("pattern deny %u/x\n")
    path = conf(tmp_path, "listener 1883\nmount_point ann/\nacl_file DIR/acl\n")
    assert main(["migrate", "mosquitto", str(path), "--into", str(tmp_path / "into")]) == 2
    assert "the topics that it matches below the mount point ann/ cannot be determined" in capsys.readouterr().out


def test_no_secret_is_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pw").write_text(f"ann:{HASH6}\nbob hush5\n")
    text = """
listener 1883
password_file DIR/pw
auth_opt_pg_password hush1
plugin_opt_dsn host=x password=hush2
tls_engine_kpass_sha1 hush3
connection far
address 127.0.0.1
topic a/# out
local_password hush4
remote_username ann
remote_password hush6
"""
    into = tmp_path / "into"
    assert main(["migrate", "mosquitto", str(conf(tmp_path, text)), "--into", str(into), "--json"]) == 0
    assert "hush" not in capsys.readouterr().out + (into / "taipan.toml").read_text()


def test_three_listeners_of_one_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "listener 1883 127.0.0.1\nlistener 1883 127.0.0.2\nlistener 1883 127.0.0.3\n"
    found = settings(tmp_path, text, capsys)
    assert [each.name for each in found.listeners] == ["tcp", "tcp-1883", "tcp-1883-3"]


@pytest.mark.parametrize("key", ["password_file", "acl_file", "include_dir", "persistence_location", "cafile"])
@pytest.mark.parametrize("kind", ["fifo", "device", "long"])
def test_no_file_is_waited_for_and_none_has_no_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, kind: str
) -> None:
    named = tmp_path / "named"
    if key in ("include_dir", "persistence_location"):
        named.mkdir()
        file = named / ("x.conf" if key == "include_dir" else "mosquitto.db")
    else:
        file = named
    value, why = str(named), "not a regular file"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        value, why = "x" * 3_000_000, "no such file" if key == "cafile" else "File name too long"
    text = f"listener 1883\nallow_anonymous true\npersistence true\n{key} {value}\n"
    if key == "cafile":
        text += f"certfile {conf(tmp_path, '')}\nkeyfile {conf(tmp_path, '')}\n"
    path = conf(tmp_path, text)
    assert main(["migrate", "mosquitto", str(path), "--into", str(tmp_path / "into")]) == 2
    said = capsys.readouterr().out
    assert why in said and len(said) < 10_000
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize("source", ["mosquitto", "emqx", "amqtt"])
@pytest.mark.parametrize("kind", ["fifo", "device", "long"])
def test_what_is_to_be_migrated_is_a_regular_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, kind: str
) -> None:
    path = tmp_path / "named"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        path = tmp_path / ("x" * 300)
    assert main(["migrate", source, str(path), "--into", str(tmp_path / "into")]) == 2
    assert ("no such file" if kind == "long" else "not a regular file") in capsys.readouterr().err


@pytest.mark.parametrize("where", ["acl_file", "include", "loaded_plugins"])
def test_the_files_of_emqx_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str) -> None:
    etc, data = tmp_path / "etc", tmp_path / "data"
    etc.mkdir()
    data.mkdir()
    named = data / "loaded_plugins" if where == "loaded_plugins" else etc / "named"
    named.symlink_to("/dev/zero")
    text = "listener.tcp.external = 1883\n"
    if where == "acl_file":
        text += f"acl_file = {named}\n"
    elif where == "include":
        text += f"include {named}\n"
    (etc / "emqx.conf").write_text(text)
    status = main(["migrate", "emqx", str(etc), "--into", str(tmp_path / "into")])
    output = capsys.readouterr()
    if where == "loaded_plugins":  # it is passed over, as one that is not there
        assert status == 0, output
    else:
        assert status == 2 and "not a regular file" in output.out
