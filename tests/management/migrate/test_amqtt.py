"""taipan migrate amqtt: broker.yaml of 0.11, of before, and of hbmqtt."""

import re
from pathlib import Path

import pytest

from taipan.broker.config import BrokerSettings
from taipan.management.configuration.config import load
from taipan.management.node import main
from taipan.management.operations.backup.import_plan import read_plan
from tests.broker.access.test_foreign_hashes import BCRYPT
from tests.support.no_package import without

ROOT = Path(__file__).parents[3]
DEFAULT = """\
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:1883
plugins:
  amqtt.plugins.logging_amqtt.EventLoggerPlugin:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
  amqtt.plugins.sys.broker.BrokerSysPlugin:
    sys_interval: 20
"""
OLD = """\
listeners:
  default:
    max-connections: 500
    type: tcp
  my-tcp-1:
    bind: 127.0.0.1:1884
  my-ws-1:
    bind: 127.0.0.1:8080
    type: ws
timeout-disconnect-delay: 2
sys_interval: 10
auth:
  plugins: ['auth.anonymous', 'auth_file']
  allow-anonymous: false
  password-file: DIR/passwords
topic-check:
  enabled: on
  plugins: [topic_taboo, topic_acl]
  publish-acl:
    ann: ['out/#']
    anonymous: [open]
  acl:
    ann: ['#']
    bob: []
"""


def migrated(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[BrokerSettings, str]:
    path = tmp_path / "broker.yaml"
    path.write_text(text.replace("DIR", str(tmp_path)))
    into = tmp_path / "into"
    assert main(["migrate", "amqtt", str(path), "--into", str(into)]) == 0, capsys.readouterr()
    told = capsys.readouterr().out
    assert main(["check", str(into / "taipan.toml")]) == 0
    return load(str(into / "taipan.toml"), environ={}).broker, told.replace(f"{tmp_path}/", "")


def test_as_it_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, told = migrated(tmp_path, DEFAULT, capsys)
    assert [(each.name, each.type, each.bind) for each in found.listeners] == [("default", "tcp", "127.0.0.1:1883")]
    assert found.listener_zones[0].allow_anonymous is True and found.sys_topics.interval == 20
    assert "broker.yaml:6: left out: amqtt.plugins.logging_amqtt.EventLoggerPlugin" in told
    assert "broker.yaml:10: changed: sys_interval: 20" in told


def test_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argon = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA"
    crypt = "$6$rounds=5000$salt$" + "x" * 86
    (tmp_path / "passwords").write_text(f"# people\nann:{argon}\nbob:{crypt}\ncat:{BCRYPT[b'U*U']}\nnone\n")
    found, told = migrated(tmp_path, OLD, capsys)
    kinds = [(each.name, each.type, each.bind, each.max_connections) for each in found.listeners]
    assert kinds == [
        ("default", "tcp", "0.0.0.0:1883", 500),
        ("my-tcp-1", "tcp", "127.0.0.1:1884", 500),
        ("my-ws-1", "ws", "127.0.0.1:8080", 500),
    ]
    assert all(zone.allow_anonymous is False for zone in found.listener_zones)
    rules = [(each.allow, each.username, each.anonymous, each.action, each.topics) for each in found.access.rules]
    assert rules == [
        (False, None, False, "pubsub", ["prohibited", "top-secret", "data/classified"]),
        (True, "ann", False, "publish", ["out/#"]),
        (True, None, True, "publish", ["open"]),
        (False, None, False, "publish", []),
        (True, "ann", False, "subscribe", ["#"]),
        (False, None, False, "subscribe", []),
    ]
    _, plan = read_plan((tmp_path / "into" / "data" / "import.plan").read_bytes())
    assert [user.name for user in plan.users] == ["cat"]
    assert "passwords:2: left out: user ann: argon2: it cannot be verified here" in told
    assert "passwords:3: left out: user bob: crypt" in told
    assert "timeout-disconnect-delay: 2" in told


def test_without_a_user_that_is_left_nobody_is_let_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "passwords").write_text("ann:$argon2id$x\n")
    found, _ = migrated(tmp_path, OLD.replace("allow-anonymous: false", "allow-anonymous: true"), capsys)
    assert found.listener_zones[0].allow_anonymous is False


def test_a_plugin_of_somebody_else_leaves_nobody_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, told = migrated(tmp_path, DEFAULT + "  my.own.Plugin: {}\n", capsys)
    assert found.listener_zones[0].allow_anonymous is False and found.access.no_match == "deny"
    assert "broker.yaml:11: left out: my.own.Plugin" in told


WRONG = {
    "listeners: [1]\n": "wrong: listeners: expected a mapping",
    "listeners:\n  default:\n    ssl: on\n": "broker.yaml:2: wrong: listener default: ssl requires certfile"
    " and keyfile",
    DEFAULT + "session_expiry_interval: soon\n": "broker.yaml:11: wrong: session_expiry_interval: soon",
    DEFAULT + "  topic_acl: {acl: {ann: ['a/#/b']}}\n": "broker.yaml:11: wrong: ann: a/#/b",
    DEFAULT + "  topic_acl: {acl: {ann: [a]}, receive_acl: {ann: [b]}}\n": "wrong: receive_acl",
    "{": "broker.yaml:1",
    "- a\n": "expected a mapping",
    "a: !!python/object:os.system {}\n": "wrong: listeners",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_told_and_nothing_is_written(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text(text)
    assert main(["migrate", "amqtt", str(path), "--into", str(tmp_path / "into")]) == 2
    told = "".join(capsys.readouterr())
    assert WRONG[text] in told and "Traceback" not in told and not (tmp_path / "into").exists()


def test_without_a_reader_of_yaml(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text(DEFAULT)
    without(monkeypatch, "yaml")
    assert main(["migrate", "amqtt", str(path), "--into", str(tmp_path / "into")]) == 2
    assert "pip install PyYAML" in capsys.readouterr().err


def test_the_commands_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "coming-from-amqtt.md").read_text("utf-8")
    (tmp_path / "broker.yaml").write_text(DEFAULT)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"(?m)^taipan (migrate .+|check .+)$", page)
    assert len(commands) == 2
    for command in commands:
        words = [re.sub(r"^/srv", str(tmp_path), word) for word in command.split()]
        assert main(words) == 0, capsys.readouterr()


BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(n)}: &{chr(n)} [{', '.join([f'*{chr(n - 1)}'] * 9)}]\n" for n in range(98, 110)
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "more than 200000 values"),
        ("a: &a [*a, *a]\n", "nested too deeply"),
        ("sys_interval: 2024-13-45\n", ":1: 2024-13-45: not understood"),
    ],
)
def test_yaml_that_no_broker_has_is_refused(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text(text)
    assert main(["migrate", "amqtt", str(path), "--into", str(tmp_path / "into")]) == 2
    assert why in capsys.readouterr().err


def test_a_placeholder_is_none_in_amqtt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text(
        "listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:1883\n"
        "plugins:\n  amqtt.plugins.topic_checking.TopicAccessControlListPlugin:\n    acl:\n      ann: ['own/%u']\n"
    )
    assert main(["migrate", "amqtt", str(path), "--into", str(tmp_path / "into")]) == 2
    assert "%c, %u and eq are literal" in capsys.readouterr().out
