"""taipan migrate emqx: an export, and the directory etc of a 4.x."""

import asyncio
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from taipan.broker.config import BrokerSettings
from taipan.management.configuration.config import load
from taipan.management.migrate.emqx_acl import read_acl
from taipan.management.migrate.erlang_terms import Atom, NoTerms, read_terms
from taipan.management.migrate.report import MigrationReport
from taipan.management.node import main
from taipan.management.operations.backup.import_plan import read_plan
from tests.support.certificates import Certificates
from tests.support.node import NodeProcess, free_port
from tests.support.peer import Address, Peer

ROOT = Path(__file__).parents[3]
EXPORTS = ROOT / "tests" / "api" / "exports"
CONF = """
## comment
node.name = edge@10.0.0.1
node.cookie = secret
listener.tcp.external = 127.0.0.1:1883
listener.tcp.external.max_connections = 500
listener.tcp.external.zone = external
listener.tcp.external.access.1 = allow all
listener.tcp.internal = 127.0.0.1:11883
listener.tcp.internal.zone = internal
listener.ssl.external = 127.0.0.1:8883
listener.ssl.external.certfile = etc/certs/localhost.pem
listener.ssl.external.keyfile = etc/certs/localhost.key
listener.ssl.external.cacertfile = etc/certs/ca.pem
listener.ssl.external.verify = verify_peer
listener.ssl.external.fail_if_no_peer_cert = true
listener.ssl.external.peer_cert_as_username = cn
listener.ws.external = 127.0.0.1:8083
listener.ws.external.mqtt_path = /mqtt
mqtt.max_packet_size = 1MB
mqtt.max_clientid_len = 100
zone.external.idle_timeout = 15s
zone.external.session_expiry_interval = 2h
zone.external.max_inflight = 7
zone.external.keepalive_backoff = 1
zone.external.rate_limit.conn_messages_in = 100,10s
zone.internal.allow_anonymous = true
zone.internal.max_mqueue_len = 9
allow_anonymous = false
acl_nomatch = deny
acl_file = etc/acl.conf
acl_cache_ttl = 1m
flapping_detect_policy = 30, 1m, 5m
zone.external.enable_flapping_detect = on
broker.sys_interval = 1m
cluster.name = x
"""
ACL = """
%% comment
{allow, {user, "dashboard"}, subscribe, ["$SYS/#"]}.
{allow, {'and', [{client, "c\\"1"}, {ipaddr, "10.0.0.0/8"}]}, pubsub, ["a/%c", {eq, "b/#"}]}.
{deny, {'or', [{user, "x"}, {ipaddrs, ["192.0.2.1", "192.0.2.2"]}]}, publish, all}.
{allow, all}.
"""


def etc(tmp_path: Path, conf: str = CONF) -> Path:
    directory = tmp_path / "etc"
    (directory / "certs").mkdir(parents=True)
    (directory / "plugins").mkdir()
    Certificates(directory / "certs").issue("localhost")
    (directory / "emqx.conf").write_text(conf)
    (directory / "acl.conf").write_text(ACL)
    (directory / "plugins" / "emqx_auth_mnesia.conf").write_text(
        "auth.mnesia.password_hash = sha256\nauth.user.1.username = ann\nauth.user.1.password = pw\n"
        "auth.client.1.clientid = sensor\nauth.client.1.password = pw2\n"
    )
    (directory / "plugins" / "emqx_retainer.conf").write_text(
        "retainer.max_payload_size = 2MB\nretainer.storage_type = ram\n"
    )
    (directory / "plugins" / "emqx_auth_http.conf").write_text("auth.http.auth_req = http://127.0.0.1/auth\n")
    return directory


def migrated(path: Path, into: Path, capsys: pytest.CaptureFixture[str]) -> tuple[BrokerSettings, str]:
    assert main(["migrate", "emqx", str(path), "--into", str(into)]) == 0, capsys.readouterr()
    told = capsys.readouterr().out
    assert main(["check", str(into / "taipan.toml")]) == 0
    return load(str(into / "taipan.toml"), environ={}).broker, told


def test_etc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, told = migrated(etc(tmp_path), tmp_path / "into", capsys)
    assert found.node.name == "edge@10.0.0.1"
    kinds = [(each.type, each.name, each.bind, each.zone) for each in found.listeners]
    assert kinds == [
        ("tcp", "external", "127.0.0.1:1883", "external"),
        ("tcp", "internal", "127.0.0.1:11883", "internal"),
        ("ssl", "external", "127.0.0.1:8883", "external"),
        ("ws", "external", "127.0.0.1:8083", "external"),
    ]
    tls = found.listeners[2].tls
    assert tls is not None and (tls.verify, tls.peer_cert_as_username) == ("required", "cn")
    assert found.listeners[0].max_connections == 500
    external, internal = found.zones["external"], found.zones["internal"]
    assert (external.max_packet_size, external.max_client_id_length, external.idle_timeout) == (1_048_576, 100, 15.0)
    assert (external.session_expiry_interval, external.max_inflight, external.keep_alive_multiplier) == (7200, 7, 2.0)
    assert (external.message_rate, external.allow_anonymous, internal.allow_anonymous) == ((100, 10.0), False, True)
    assert (internal.max_queued_messages, external.flapping_threshold, external.flapping_ban) == (9, 30, 300.0)
    assert (found.access.no_match, found.access.cache_ttl, found.sys_topics.interval) == ("deny", 60.0, 60.0)
    assert found.retained.max_payload_size == 2 * 1024**2
    rules = [
        (each.allow, each.username, each.client_id, each.address, each.action, each.topics)
        for each in found.access.rules
    ]
    assert rules == [
        (True, "dashboard", None, None, "subscribe", ["$SYS/#"]),
        (True, None, 'c"1', "10.0.0.0/8", "pubsub", ["a/%c", "eq b/#"]),
        (False, "x", None, None, "publish", []),
        (False, None, None, "192.0.2.1/32", "publish", []),
        (False, None, None, "192.0.2.2/32", "publish", []),
        (True, None, None, None, "pubsub", []),
    ]
    _, plan = read_plan((tmp_path / "into" / "data" / "import.plan").read_bytes())
    assert [(user.kind, user.name, user.password[:6]) for user in plan.users] == [
        ("username", "ann", "scrypt"),
        ("clientid", "sensor", "scrypt"),
    ]
    assert "cluster.name x: clusters use NATS" in told and "emqx_auth_http" in told
    assert "node.cookie" in told


def test_a_loaded_plugin_that_decided_leaves_nobody_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = etc(tmp_path, "listener.tcp.external = 127.0.0.1:1883\nallow_anonymous = true\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "loaded_plugins").write_text(
        "{emqx_management, true}.\n{emqx_auth_mysql, true}.\n{emqx_auth_jwt,false}.\n"
    )
    found, told = migrated(directory, tmp_path / "into", capsys)
    assert found.access.no_match == "deny" and found.listener_zones[0].allow_anonymous is False
    assert "emqx_auth_mysql.conf does not exist; it decided which clients may connect" in told


WRONG = {
    "listener.tcp.external = 127.0.0.1:1883\nlistener.tcp.external.access.1 = deny all\n": "emqx.conf:2: wrong",
    "mqtt.max_packet_size = large\n": "emqx.conf:1: wrong: mqtt.max_packet_size large: expected a size such as 1MB",
    "zone.external.idle_timeout = soon\n": "expected a time such as 15s",
    "zone.external.enable_acl = maybe\n": "expected on or off",
    "listener.ssl.external = 8883\n": "no certfile",
    "nonsense\n": "emqx.conf:1: wrong: nonsense: expected key = value",
    "acl_file = etc/none.conf\n": "none.conf: wrong: acl_file: No such file",
}


@pytest.mark.parametrize("conf", WRONG)
def test_what_is_wrong_is_told_and_nothing_is_written(
    conf: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", "emqx", str(etc(tmp_path, conf)), "--into", str(tmp_path / "into")]) == 2
    assert WRONG[conf] in capsys.readouterr().out and not (tmp_path / "into").exists()


@pytest.mark.parametrize(
    "term, said",
    [
        ("{allow, {user, {re, \"x\"}}, subscribe, [\"a\"]}.", "is not supported"),
        ("{maybe, all}.", "expected allow or deny in a rule"),
        ("{deny, all, read, [\"a\"]}.", "the action is publish"),
        ("{deny, all, publish, [\"a/#/b\"]}.", "topic a/#/b"),
        ("{deny, {ipaddr, \"nowhere\"}, publish, [\"a\"]}.", "not an address"),
        ("{deny, all, publish}.", "topics are missing"),
        ("{deny, all, publish, []}.", "a rule without topics"),
        ("{allow, all}", "the full stop after"),
        ("{" * 200, "nested more than"),
    ],
)  # fmt: skip
def test_terms_that_are_no_rule(term: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "acl.conf"
    path.write_text("%% first\n" + term + "\n")
    report = MigrationReport()
    assert read_acl(path, report) == []
    (entry,) = report.of("wrong")
    assert said in entry.why and entry.place.startswith(f"{path}:")


def test_erlang_terms() -> None:
    text = '{a, \'Quoted Atom\', "t\\"e\\\\x\\n", [1, -2.5, []], {}}. % end\nsecond.\n'
    assert list(read_terms(text)) == [
        (1, (Atom("a"), Atom("Quoted Atom"), 't"e\\x\n', [1.0, -2.5, []], ())),
        (2, Atom("second")),
    ]
    with pytest.raises(NoTerms):
        list(read_terms('{"open.'))


@pytest.mark.parametrize("version", ["4.1", "4.2.14", "4.3", "4.4"])
def test_an_export(version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, told = migrated(EXPORTS / f"emqx-{version}.json", tmp_path / "into", capsys)
    assert all(each.bind.startswith("127.0.0.1") for each in found.listeners)
    _, plan = read_plan((tmp_path / "into" / "data" / "import.plan").read_bytes())
    assert plan.users and plan.rules and "auth_mnesia" in told
    assert not plan.apps and "left out: application admin: its secret is EMQX's published default" in told


@pytest.mark.asyncio
async def test_users_of_an_export_log_in_at_the_first_start(tmp_path: Path) -> None:
    port = free_port()
    assert (
        await asyncio.to_thread(
            main, ["migrate", "emqx", str(EXPORTS / "emqx-4.4.json"), "--into", str(tmp_path / "into")]
        )
        == 0
    )
    listeners = f"listeners.0.bind=127.0.0.1:{port}", f"listeners.1.bind=127.0.0.1:{free_port()}"
    node = NodeProcess(tmp_path / "into" / "taipan.toml", *[word for each in listeners for word in ("--set", each)])
    await node.start()
    try:
        for password, right in ((b"c-secret", True), (b"wrong", False)):
            peer = Peer(Address("127.0.0.1", port), 5)
            code = (await peer.connect("c", username="carol", password=password, expect=None)).reason_code
            assert (code == 0) is right
            await peer.close()
    finally:
        assert await node.stop() == 0


def test_a_wrong_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "export.json"
    path.write_text('{"version": "4.4", "auth_mnesia": [{"login": "", "type": "username", "password": "x"}]}')
    assert main(["migrate", "emqx", str(path), "--into", str(tmp_path / "into")]) == 2
    assert "auth_mnesia[0]" in capsys.readouterr().out and not (tmp_path / "into").exists()
    for text in ("{", '{"file": 1}', '{"x": 1}'):
        path.write_text(text)
        assert main(["migrate", "emqx", str(path), "--into", str(tmp_path / "into")]) == 2
    path.write_bytes(b'{"version": "\xff"}')
    assert main(["migrate", "emqx", str(path), "--into", str(tmp_path / "into")]) == 2
    assert main(["migrate", "emqx", str(tmp_path / "none"), "--into", str(tmp_path / "into")]) == 2


def test_the_commands_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "coming-from-emqx-4.md").read_text("utf-8")
    directory = etc(tmp_path)
    shutil.copy(EXPORTS / "emqx-4.4.json", tmp_path / "export.json")
    commands = re.findall(r"(?m)^taipan (migrate .+|check .+)$", page)
    assert len(commands) == 3
    for command in commands:
        words = [re.sub(r"^/srv", str(tmp_path), word) for word in command.split()]
        words = [str(directory) if word == "/etc/emqx" else word for word in words]
        words = [str(tmp_path / "export.json") if word.startswith("/var/lib") else word for word in words]
        assert main(words) == 0, capsys.readouterr()


def test_nothing_said_about_anonymous_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """EMQX lets them in, and allows what no rule says, only where that is written."""
    directory = etc(tmp_path, "listener.tcp.external = 127.0.0.1:1883\n")
    found, told = migrated(directory, tmp_path / "into", capsys)
    assert found.listener_zones[0].allow_anonymous is False and found.access.no_match == "deny"
    assert "no allow_anonymous" in told and "no acl_nomatch" in told


def test_what_a_zone_says_of_anonymous_clients_is_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = """
listener.tcp.external = 127.0.0.1:1883
listener.tcp.internal = 127.0.0.1:1884
listener.tcp.internal.zone = internal
listener.tcp.third = 127.0.0.1:1885
listener.tcp.third.zone = third
zone.external.allow_anonymous = true
zone.third.allow_anonymous = false
zone.internal.max_inflight = 7
allow_anonymous = false
"""
    found, _ = migrated(etc(tmp_path, conf), tmp_path / "into", capsys)
    assert [zone.allow_anonymous for zone in found.listener_zones] == [True, False, False]


def test_a_configuration_that_includes_itself_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = etc(tmp_path, "include etc/emqx.conf\nnode.cookie = hush\n")
    assert main(["migrate", "emqx", str(directory), "--into", str(tmp_path / "into"), "--json"]) == 2
    out = capsys.readouterr().out
    assert "it includes itself" in out and "hush" not in out


REWRITE = """
listener.tcp.external = 127.0.0.1:1883
module.rewrite.sub.rule.1 = y/+/z/# ^y/(.+)/z/(.+)$ y/z/$2
module.rewrite.pub.rule.1 = x/# ^x/y/(.+)$ z/y/x/$1
module.rewrite.pub.rule.2 = x/y/+ ^x/y/(\\d+)$ z/y/$1
module.rewrite.rule.3 = mine/# ^mine/(.*)$ of/%c/$1
"""


@pytest.mark.parametrize("loaded", [True, False, None])
def test_topic_rewrite(loaded: bool | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = etc(tmp_path, REWRITE)
    if loaded is not None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "loaded_modules").write_text(f"{{emqx_mod_rewrite, {str(loaded).lower()}}}.\n")
    found, told = migrated(directory, tmp_path / "into", capsys)
    rules = [(each.action, each.source_topic, each.re, each.dest_topic) for each in found.rewrite.rules]
    if loaded is False:
        assert not rules and "emqx_mod_rewrite is not loaded, so EMQX does not use it either" in told
        return
    assert rules == [  # the highest number first
        ("all", "mine/#", "^mine/(.*)$", "of/%c/$1"),
        ("publish", "x/y/+", r"^x/y/(\d+)$", "z/y/$1"),
        ("subscribe", "y/+/z/#", "^y/(.+)/z/(.+)$", "y/z/$2"),
        ("publish", "x/#", "^x/y/(.+)$", "z/y/x/$1"),
    ]
    assert "access rules apply to the topic after rewriting" in told
    assert ("assumed to be loaded" in told) is (loaded is None)


@pytest.mark.parametrize(
    "value, said",
    [
        ("x/# ^x/(?=y)(.+)$ z/$1", "re: expected a regular expression of RE2"),
        ("x/#/y ^x$ z", "source_topic: expected a Topic Filter"),
        ("x/# ^x/(.+)$ z/#", "dest_topic: expected a Topic Name"),
        ("x/# ^x/(.+)$ z/$2", "dest_topic: names the group $2, and re has 1"),
        ("x/# ^x/(.+)$", "expected a topic filter, a regular expression and a topic"),
    ],
)
def test_a_rewrite_rule_that_cannot_be_used(
    value: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = etc(tmp_path, f"listener.tcp.external = 127.0.0.1:1883\nmodule.rewrite.pub.rule.1 = {value}\n")
    assert main(["migrate", "emqx", str(directory), "--into", str(tmp_path / "into")]) == 2
    assert said in capsys.readouterr().out


def test_modules_of_an_export_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each module of the export of an enterprise node, with what replaces it."""
    modules = [
        {"id": "module:retainer", "type": "retainer", "config": {}, "enabled": True},
        {"id": "module:x", "type": "of_a_later_version", "config": {}, "enabled": True},
        {"id": "module:recon", "type": "recon", "config": {}, "enabled": False},
    ]
    path = tmp_path / "export.json"
    path.write_text(msgspec.json.encode({"version": "4.4", "modules": modules}).decode())
    _, told = migrated(path, tmp_path / "into", capsys)
    assert "left out: module retainer: its limits are [retained]" in told
    assert "left out: module of_a_later_version: no counterpart" in told
    assert "left out: module recon: disabled" in told


SUBSCRIPTIONS = """
listener.tcp.external = 127.0.0.1:1883
module.subscription.1.topic = user/%u
module.subscription.1.qos = 2
module.subscription.2.topic = $share/g/devices/%c/#
module.subscription.2.rap = 1
module.subscription.2.rh = 2
"""


def test_proxy_subscriptions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, told = migrated(etc(tmp_path, SUBSCRIPTIONS), tmp_path / "into", capsys)
    topics = [(each.topic, each.qos, each.nl, each.rap, each.rh) for each in found.auto_subscribe.topics]
    assert topics == [("user/%u", 2, False, False, 0), ("$share/g/devices/%c/#", 0, False, True, 2)]
    assert "emqx_mod_subscription: " in told and "assumed to be loaded" in told


@pytest.mark.parametrize(
    "lines, said",
    [
        ("module.subscription.1.topic = a/#/b", "module.subscription.1.topic a/#/b: not a Topic Filter"),
        ("module.subscription.1.topic = a\nmodule.subscription.1.qos = 3", "module.subscription.1.qos 3: expected"),
        ("module.subscription.1.qos = 1", "module.subscription.1: no topic"),
        ("module.subscription.1.topic = $share/g/a\nmodule.subscription.1.nl = 1", "cannot have it"),
    ],
)
def test_a_proxy_subscription_that_is_wrong(
    lines: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = etc(tmp_path, f"listener.tcp.external = 127.0.0.1:1883\n{lines}\n")
    assert main(["migrate", "emqx", str(directory), "--into", str(tmp_path / "into")]) == 2
    assert said in capsys.readouterr().out


WEB_HOOK = """
web.hook.url = http://127.0.0.1:8080/hook
web.hook.headers.content-type = application/json
web.hook.headers.x-key = one
web.hook.body.encoding_of_payload_field = base62
web.hook.pool_size = 16
web.hook.enable_pipelining = false
web.hook.rule.client.connect.1 = {"action": "on_client_connect"}
web.hook.rule.message.publish.1 = {"action": "on_message_publish", "topic": "a/#"}
"""


def web_hook_conf(tmp_path: Path, text: str, loaded: str = "{emqx_web_hook, true}.\n") -> Path:
    directory = etc(tmp_path, "listener.tcp.external = 127.0.0.1:1883\n")
    (directory / "plugins" / "emqx_web_hook.conf").write_text(text)
    if loaded:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "loaded_plugins").write_text(loaded)
    return directory


def test_the_web_hook_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = web_hook_conf(tmp_path, WEB_HOOK)
    assert main(["migrate", "emqx", str(directory), "--into", str(tmp_path / "into")]) == 0
    told = capsys.readouterr().out
    found = load(str(tmp_path / "into" / "taipan.toml"), environ={}).webhook
    assert (found.url, found.encoding_of_payload_field, found.pool_size, found.enable_pipelining) == (
        "http://127.0.0.1:8080/hook", "base62", 16, False
    )  # fmt: skip
    assert found.headers == {"content-type": "application/json", "x-key": "one"}
    assert [(each.event, each.topic) for each in found.rules] == [("client.connect", ""), ("message.publish", "a/#")]
    assert "carried: web.hook.pool_size 16: webhook.pool_size" in told


def test_a_web_hook_plugin_that_may_not_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = web_hook_conf(tmp_path, WEB_HOOK, "")
    assert main(["migrate", "emqx", str(directory), "--into", str(tmp_path / "into")]) == 0
    assert "if it was, set up [webhook]" in capsys.readouterr().out
    assert load(str(tmp_path / "into" / "taipan.toml"), environ={}).webhook.url == ""


@pytest.mark.parametrize(
    "line, said",
    [
        ("web.hook.url = nowhere", "expected http://"),
        ("web.hook.pool_size = many", "pool_size many: expected"),
        ("web.hook.url = http://a\nweb.hook.rule.client.connect.1 = x", "expected JSON"),
        ('web.hook.url = http://a\nweb.hook.rule.client.connect.1 = {"topic": "a"}', "has no topic"),
    ],
)
def test_a_web_hook_plugin_that_is_wrong(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = web_hook_conf(tmp_path, f"{line}\n")
    assert main(["migrate", "emqx", str(directory), "--into", str(tmp_path / "into")]) == 2
    assert said in capsys.readouterr().out


LWM2M = """
lwm2m.bind.udp.1 = 0.0.0.0:5683
lwm2m.bind.udp.2 = 0.0.0.0:5693
lwm2m.bind.dtls.1 = 0.0.0.0:5684
lwm2m.lifetime_min = 10s
lwm2m.lifetime_max = 1h
lwm2m.qmode_time_window = 22
lwm2m.auto_observe = /3/0/9, /6
lwm2m.lb = coap
lwm2m.opts.buffer = 1024KB
lwm2m.mountpoint = lwm2m/%e/
lwm2m.topics.command = dn/#
lwm2m.topics.notify = up/news
lwm2m.update_msg_publish_condition = always
lwm2m.xml_dir = {{ platform_etc_dir }}/lwm2m_xml
lwm2m.certfile = etc/old.pem
lwm2m.dtls.verify = verify_peer
lwm2m.dtls.certfile = {certfile}
lwm2m.dtls.keyfile = {keyfile}
lwm2m.dtls.cacertfile = {certfile}
lwm2m.dtls.psk_ciphers = PSK-AES128-CBC-SHA
"""


def test_the_plugin_of_lwm2m_becomes_listeners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = etc(tmp_path, "listener.tcp.external = 127.0.0.1:1883\nallow_anonymous = true\n")
    (directory / "plugins").mkdir(exist_ok=True)
    (directory / "lwm2m_xml").mkdir()
    certfile, keyfile = Certificates(tmp_path).issue("localhost")
    text = LWM2M.replace("{{ platform_etc_dir }}", str(directory))
    text = text.replace("{certfile}", certfile).replace("{keyfile}", keyfile)
    (directory / "plugins" / "emqx_lwm2m.conf").write_text(text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "loaded_plugins").write_text("{emqx_management, true}.\n{emqx_lwm2m, true}.\n")
    found, told = migrated(directory, tmp_path / "into", capsys)
    first, second = [each for each in found.listeners if each.type == "lwm2m"]
    assert (first.name, first.bind) == ("lwm2m", "0.0.0.0:5683")
    assert (second.name, second.bind) == ("lwm2m-2", "0.0.0.0:5693")
    [secure] = [each for each in found.listeners if each.type == "lwm2ms"]
    assert (secure.name, secure.bind) == ("lwm2ms", "0.0.0.0:5684") and first.tls is None and secure.tls is not None
    assert (secure.tls.verify, secure.tls.certfile, secure.tls.cafile) == ("optional", certfile, certfile)
    assert first.gateway == second.gateway == secure.gateway == {
        "lifetime_min": 10, "lifetime_max": 3600, "qmode_time_window": 22, "auto_observe": ["/3/0/9", "/6"],
        "mountpoint": "lwm2m/%e/", "topics": {"command": "dn/#", "notify": "up/news"},
        "update_msg_publish_condition": "always", "xml_dir": str(directory / "lwm2m_xml"),
    }  # fmt: skip
    assert "psk_file has the latter" in told and "dtls.certfile is used" in told
    assert "the buffers are those of the system" in told


SN = """
mqtt.sn.port = 1884
mqtt.sn.advertise_duration = 15m
mqtt.sn.gateway_id = 7
mqtt.sn.username = mqtt_sn_user
mqtt.sn.password = abc
mqtt.sn.idle_timeout = 30s
mqtt.sn.enable_stats = off
mqtt.sn.enable_qos3 = on
mqtt.sn.predefined.topic.0 = reserved
mqtt.sn.predefined.topic.1 = /predefined/topic/name/hello
mqtt.sn.subs_resume = false
"""


def test_the_plugin_of_mqtt_sn_becomes_a_listener(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = etc(tmp_path, "listener.tcp.external = 127.0.0.1:1883\nallow_anonymous = true\n")
    (directory / "plugins").mkdir(exist_ok=True)
    (directory / "plugins" / "emqx_sn.conf").write_text(SN)
    (tmp_path / "data").mkdir()
    loaded = tmp_path / "data" / "loaded_plugins"
    loaded.write_text("{emqx_management, true}.\n{emqx_sn, true}.\n")
    found, told = migrated(directory, tmp_path / "into", capsys)
    [listener, _] = found.listeners
    assert (listener.name, listener.type, listener.bind) == ("mqttsn", "mqttsn", "0.0.0.0:1884")
    assert listener.gateway == {
        "advertise_duration": 900, "gateway_id": 7, "username": "mqtt_sn_user", "password": "abc", "enable_qos3": True,
        "predefined_topics": {"1": "/predefined/topic/name/hello"},
    }  # fmt: skip
    assert found.listener_zones[0].idle_timeout == 30
    assert "every client has statistics" in told and "0 is reserved" in told
    loaded.unlink()
    found, told = migrated(directory, tmp_path / "again", capsys)
    assert len(found.listeners) == 1 and "add a listener of type mqttsn" in told


EXHOOK = """
exhook.request_failed_action = ignore
exhook.request_timeout = 3s
exhook.auto_reconnect = 30s
exhook.pool_size = 8
exhook.hook_priority = 7
exhook.server.default.url = http://127.0.0.1:9000
exhook.server.second.url = http://127.0.0.1:9001
exhook.server.default.socket_options.nodelay = true
"""


def test_exhook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = web_hook_conf(tmp_path, "", "{emqx_exhook, true}.\n")
    authority = tmp_path / "ca.pem"
    authority.touch()
    file = f"exhook.server.default.ssl.cacertfile = {authority}\n"
    (directory / "plugins" / "emqx_exhook.conf").write_text(EXHOOK + file)
    assert main(["migrate", "emqx", str(directory), "--into", str(tmp_path / "into")]) == 0
    told = capsys.readouterr().out
    assert "left out: server default, cacertfile: not used with http://" in told
    found = load(str(tmp_path / "into" / "taipan.toml"), environ={})
    events, access = found.exhook, found.broker.access.exhook  # type: ignore[attr-defined]
    assert (events.request_timeout, events.auto_reconnect, events.pool_size) == (3.0, 30.0, 8)
    assert [(each.name, each.url) for each in events.servers] == [
        ("default", "http://127.0.0.1:9000"), ("second", "http://127.0.0.1:9001")
    ]  # fmt: skip
    assert (access.url, access.timeout, access.on_failure) == ("http://127.0.0.1:9000", 3.0, "ignore")
    assert [each.url for each in access.more] == ["http://127.0.0.1:9001"]
    assert events.request_failed_action == "ignore" and "message.publish" not in told
    assert "hook_priority 7: providers are asked after topic rewrite" in told


def test_exhook_that_may_not_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = web_hook_conf(tmp_path, "", "")
    (directory / "plugins" / "emqx_exhook.conf").write_text(EXHOOK)
    assert main(["migrate", "emqx", str(directory), "--into", str(tmp_path / "into")]) == 0
    assert "if it was, set up [exhook]" in capsys.readouterr().out


COAP = """
coap.bind.udp.1 = 0.0.0.0:5683
coap.bind.udp.2 = 127.0.0.1:5685
coap.bind.dtls.1 = 0.0.0.0:5684
coap.enable_stats = off
coap.dtls.keyfile = {keyfile}
coap.dtls.certfile = {certfile}
coap.dtls.cacertfile = {certfile}
coap.dtls.verify = verify_peer
coap.dtls.fail_if_no_peer_cert = true
coap.dtls.ciphers = ECDHE-ECDSA-AES256-GCM-SHA384,ECDHE-RSA-AES256-GCM-SHA384
coap.other = 1
"""


def test_the_plugin_of_coap_becomes_listeners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = etc(tmp_path, "listener.tcp.external = 127.0.0.1:1883\nallow_anonymous = true\n")
    (directory / "plugins").mkdir(exist_ok=True)
    certfile, keyfile = Certificates(tmp_path).issue("localhost")
    (directory / "plugins" / "emqx_coap.conf").write_text(COAP.format(certfile=certfile, keyfile=keyfile))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "loaded_plugins").write_text("{emqx_coap, true}.\n")
    found, told = migrated(directory, tmp_path / "into", capsys)
    named = {each.name: each for each in found.listeners}
    assert [(named[name].type, named[name].bind) for name in ("coap", "coap-2", "coaps")] == [
        ("coap", "0.0.0.0:5683"), ("coap", "127.0.0.1:5685"), ("coaps", "0.0.0.0:5684"),
    ]  # fmt: skip
    tls = named["coaps"].tls
    assert tls is not None and (tls.verify, tls.keyfile, tls.cafile) == ("required", keyfile, certfile)
    assert tls.ciphers == "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384" and named["coap"].tls is None
    assert "every client has statistics" in told and "coap.other 1" in told


@pytest.mark.parametrize("number", [3, 150])
def test_resources_and_rules_without_effect_are_named(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what replaces them, up to 100 records; the others are counted."""
    resources = [{"id": f"resource:{each}", "type": "bridge_pulsar", "config": {}} for each in range(number)]
    rule = {"id": "rule:1", "rawsql": 'SELECT * FROM "t"', "actions": [{"name": "data_to_pulsar", "args": {}}]}
    path = tmp_path / "export.json"
    path.write_text(msgspec.json.encode({"version": "4.4", "rules": [rule], "resources": resources}).decode())
    _, told = migrated(path, tmp_path / "into", capsys)
    kept = "kept only for the next export: "
    assert f"left out: resources resource:0: {kept}type bridge_pulsar is unknown here; send rows with data_to_k" in told
    if number == 3:
        assert f"left out: rules rule:1: {kept}the action data_to_pulsar is unknown here; send rows with data_" in told
        assert "without a counterpart" not in told
    else:
        assert "left out: resources: 50 more records without a counterpart, kept for the next export" in told
        assert "left out: rules: 1 records without a counterpart, kept for the next export" in told
