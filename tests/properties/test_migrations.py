"""Whatever configuration there is: a migration writes one that can be used, or says at which of its lines it cannot.

Values that the other broker accepts are always carried over somehow; any other value is either carried over too, or
reported as wrong with the file and the line.
"""

import contextlib
import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taipan.broker.transport.tls import build_context
from taipan.management.configuration.config import load
from taipan.management.node import main
from tests.support.certificates import Certificates

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FLAG = st.sampled_from(["true", "false"])
ON_OFF = st.sampled_from(["on", "off", "true", "false"])
DURATION = st.builds("{}{}".format, st.integers(0, 2000), st.sampled_from(["ms", "s", "m", "h", "d"]))
SIZE = st.builds("{}{}".format, st.integers(0, 2000), st.sampled_from(["", "KB", "MB", "GB"]))
NUMBER = st.integers(0, 1 << 40).map(str)
TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), min_size=1, max_size=12
)  # fmt: skip
NAME = st.from_regex(r"[A-Za-z0-9_]{1,8}", fullmatch=True)

MOSQUITTO: dict[str, st.SearchStrategy[str]] = {
    "max_inflight_messages": st.integers(0, 65_535).map(str),
    "max_inflight_bytes": NUMBER,
    "max_queued_messages": st.integers(0, 1 << 31).map(str),
    "max_queued_bytes": NUMBER,
    "memory_limit": NUMBER,
    "max_packet_size": st.integers(20, 268_435_455).map(str),
    "message_size_limit": st.integers(0, 268_435_455).map(str),
    "max_keepalive": st.integers(0, 65_535).map(str),
    "persistent_client_expiration": st.builds("{}{}".format, st.integers(1, 5000), st.sampled_from("hdwmy")),
    "sys_interval": st.integers(0, 65_535).map(str),
    "queue_qos0_messages": FLAG,
    "upgrade_outgoing_qos": FLAG,
    "retain_available": FLAG,
    "check_retain_source": FLAG,
    "set_tcp_nodelay": FLAG,
    "allow_anonymous": FLAG,
    "allow_zero_length_clientid": FLAG,
    "auto_id_prefix": NAME,
    "log_type": st.sampled_from(["error", "debug", "all", "information"]),
    "per_listener_settings": FLAG,
    "persistence": st.just("false"),
    "autosave_interval": NUMBER,
}
OF_LISTENER: dict[str, st.SearchStrategy[str]] = {
    "max_connections": st.integers(-1, 1_000_000).map(str),
    "max_qos": st.sampled_from("012"),
    "max_topic_alias": st.integers(0, 65_535).map(str),
    "mount_point": NAME.map(lambda name: f"{name}/"),
    "protocol": st.sampled_from(["mqtt", "websockets"]),
    "use_username_as_clientid": FLAG,
    "socket_domain": st.sampled_from(["ipv4", "ipv6"]),
    "allow_anonymous": FLAG,
}
OF_TLS: dict[str, st.SearchStrategy[str]] = {
    "cafile": st.just("CERTS/ca.pem"),
    "require_certificate": st.just("false"),
    "tls_version": st.sampled_from(["tlsv1.1", "tlsv1.2", "tlsv1.3"]),
    "ciphers": st.just("ECDHE-ECDSA-AES256-GCM-SHA384"),
    "use_identity_as_username": st.just("false"),
    "use_subject_as_username": st.just("false"),
    "dhparamfile": st.just("CERTS/ca.pem"),
}
EMQX: dict[str, st.SearchStrategy[str]] = {
    "zone.external.idle_timeout": DURATION,
    "zone.external.enable_acl": ON_OFF,
    "zone.external.acl_deny_action": st.sampled_from(["ignore", "disconnect"]),
    "zone.external.max_packet_size": SIZE,
    "zone.external.max_clientid_len": st.integers(23, 65_535).map(str),
    "zone.external.max_topic_levels": st.integers(0, 300).map(str),
    "zone.external.max_qos_allowed": st.sampled_from("012"),
    "zone.external.max_topic_alias": st.integers(0, 65_535).map(str),
    "zone.external.server_keepalive": NUMBER,
    "zone.external.keepalive_backoff": st.sampled_from(["0.51", "0.75", "1", "1.5"]),
    "zone.external.max_subscriptions": NUMBER,
    "zone.external.upgrade_qos": ON_OFF,
    "zone.external.max_inflight": NUMBER,
    "zone.external.retry_interval": DURATION,
    "zone.external.max_awaiting_rel": NUMBER,
    "zone.external.await_rel_timeout": DURATION,
    "zone.external.session_expiry_interval": DURATION,
    "zone.external.max_mqueue_len": NUMBER,
    "zone.external.mqueue_priorities": st.just("none"),
    "zone.external.mqueue_store_qos0": FLAG,
    "zone.external.enable_flapping_detect": ON_OFF,
    "zone.external.mountpoint": st.sampled_from(["site/", "%c/", "%u/"]),
    "zone.external.rate_limit.conn_messages_in": st.just("100,10s"),
    "zone.external.rate_limit.conn_bytes_in": st.just("100KB,10s"),
    "zone.other.max_inflight": NUMBER,
    "mqtt.max_packet_size": SIZE,
    "flapping_detect_policy": st.builds("{}, {}, {}".format, st.integers(0, 99), DURATION, DURATION),
    "allow_anonymous": FLAG,
    "acl_nomatch": st.sampled_from(["allow", "deny"]),
    "enable_acl_cache": ON_OFF,
    "acl_cache_max_size": NUMBER,
    "acl_cache_ttl": DURATION,
    "broker.sys_interval": DURATION,
    "broker.sys_heartbeat": DURATION,
    "broker.shared_subscription_strategy": st.sampled_from(
        ["random", "round_robin", "sticky", "hash", "hash_clientid", "hash_topic", "local"]
    ),
    "node.name": st.sampled_from(["emqx@127.0.0.1", "n-1@host.example.org", "emqx@::1"]),
    "log.level": st.sampled_from(["debug", "info", "warning", "critical"]),
}
EMQX_LISTENER: dict[str, st.SearchStrategy[str]] = {
    "acceptors": NUMBER,
    "max_connections": NUMBER,
    "max_conn_rate": NUMBER,
    "zone": st.sampled_from(["external", "other", "third"]),
    "mountpoint": st.just("m/"),
    "proxy_protocol": ON_OFF,
    "proxy_protocol_timeout": DURATION,
    "backlog": NUMBER,
    "nodelay": FLAG,
    "access.1": st.just("allow all"),
    "mqtt_path": st.sampled_from(["/mqtt", "/"]),
    "check_origins": st.just("http://localhost:18083, http://127.0.0.1:18083"),
    "check_origin_enable": FLAG,
    "allow_origin_absence": FLAG,
    "verify_protocol_header": ON_OFF,
    "compress": FLAG,
    "cacertfile": st.just("etc/certs/ca.pem"),
    "verify": st.just("verify_none"),
    "fail_if_no_peer_cert": FLAG,
    "peer_cert_as_username": st.sampled_from(["cn", "dn"]),
    "tls_versions": st.sampled_from(["tlsv1.3,tlsv1.2", "tlsv1.3", "tlsv1.2,tlsv1.1,tlsv1"]),
    "handshake_timeout": DURATION,
}


def lines_of(keys: dict[str, st.SearchStrategy[str]], most: int, join: str = " ") -> st.SearchStrategy[list[str]]:
    """Some of these keys, each once, with a value that the other broker accepts."""
    one = st.sampled_from(sorted(keys)).flatmap(lambda key: st.tuples(st.just(key), keys[key]))
    return st.lists(one, max_size=most, unique_by=lambda pair: pair[0]).map(
        lambda pairs: [f"{key}{join}{value}" for key, value in pairs]
    )


PORTS = st.lists(
    st.one_of(st.integers(1, 65_535), st.sampled_from([8081, 8082, 18083, 18084])), min_size=1, max_size=4, unique=True
)


@st.composite
def mosquitto_conf(draw: st.DrawFn) -> list[str]:
    lines = draw(lines_of(MOSQUITTO, 10))
    for port in draw(PORTS):
        host = draw(st.sampled_from(["", " 127.0.0.1", " localhost", " 0.0.0.0"]))
        lines += [f"listener {port}{host}", *draw(lines_of(OF_LISTENER, 4))]
        if draw(st.booleans()):
            lines += ["certfile CERTS/localhost.pem", "keyfile CERTS/localhost.key", *draw(lines_of(OF_TLS, 4))]
            if draw(st.booleans()):
                # Said again, the last one counts: in Mosquitto, and here.
                lines += ["cafile CERTS/ca.pem", "require_certificate true", "use_identity_as_username true"]
    return lines


@st.composite
def emqx_conf(draw: st.DrawFn) -> list[str]:
    lines = draw(lines_of(EMQX, 14, " = "))
    for number, port in enumerate(draw(PORTS)):
        kind = draw(st.sampled_from(["tcp", "ssl", "ws", "wss"]))
        host = draw(st.sampled_from(["", "0.0.0.0:", "127.0.0.1:", "::1:", "[::]:"]))
        name = f"listener.{kind}.l{number}"
        lines += [f"{name} = {host}{port}"]
        lines += [f"{name}.{line}" for line in draw(lines_of(EMQX_LISTENER, 8, " = "))]
        if kind in ("ssl", "wss"):
            lines += [f"{name}.certfile = etc/certs/localhost.pem", f"{name}.keyfile = etc/certs/localhost.key"]
    return lines


@st.composite
def spoiled(draw: st.DrawFn, sound: st.SearchStrategy[list[str]], join: str) -> list[str]:
    """The same with one value, or one line, that may be anything."""
    lines = draw(sound)
    index = draw(st.integers(0, len(lines) - 1))
    key = lines[index].partition(join)[0]
    lines[index] = draw(st.one_of(TEXT.map(lambda text: f"{key}{join}{text}"), TEXT))
    return lines


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    Certificates(directory).issue("localhost")
    return directory


@contextlib.contextmanager
def source_of(broker: str, lines: list[str], authority: Path) -> Iterator[tuple[Path, Path]]:
    """The file or directory to migrate, and where to."""
    with tempfile.TemporaryDirectory() as made:
        root = Path(made).resolve()
        if broker == "mosquitto":
            path = root / "mosquitto.conf"
            path.write_text("\n".join(lines).replace("CERTS", str(authority)) + "\n", "utf-8")
        else:
            path = root / "etc"
            path.mkdir()
            shutil.copytree(authority, path / "certs")
            (path / "emqx.conf").write_text("\n".join(lines) + "\n", "utf-8")
        yield path, root / "into"


def migrated(broker: str, path: Path, into: Path) -> tuple[int, dict[str, Any]]:
    told, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(errors):
        status = main(["migrate", broker, str(path), "--into", str(into), "--json"])
    return status, json.loads(told.getvalue())


def assert_usable(into: Path) -> None:
    for listener in load(str(into / "taipan.toml"), environ={}).broker.listeners:
        if listener.tls is not None:
            build_context(listener.tls)


def assert_sound_or_placed(broker: str, lines: list[str], authority: Path) -> None:
    with source_of(broker, lines, authority) as (path, into):
        status, report = migrated(broker, path, into)
        if status == 0:
            assert_usable(into)
            return
        assert not into.exists() and "taipan.toml" not in report["error"]
        wrong = [line for line in report["lines"] if line["outcome"] == "wrong"]
        assert wrong or "no listener is left" in report["error"], report["error"]
        for line in wrong:
            file, _, number = line["place"].rpartition(":")
            assert Path(file).is_file() and re.fullmatch(r"\d+", number), line
            assert 1 <= int(number) <= len(Path(file).read_bytes().split(b"\n"))


@FEW
@given(lines=mosquitto_conf())
def test_what_mosquitto_accepts(lines: list[str], authority: Path) -> None:
    with source_of("mosquitto", lines, authority) as (path, into):
        status, report = migrated("mosquitto", path, into)
        assert status == 0, [line for line in report["lines"] if line["outcome"] == "wrong"] or report["error"]
        assert_usable(into)


@FEW
@given(lines=emqx_conf())
def test_what_emqx_accepts(lines: list[str], authority: Path) -> None:
    with source_of("emqx", lines, authority) as (path, into):
        status, report = migrated("emqx", path, into)
        assert status == 0, [line for line in report["lines"] if line["outcome"] == "wrong"] or report["error"]
        assert_usable(into)


@FEW
@given(lines=spoiled(mosquitto_conf(), " "))
def test_one_line_of_mosquitto_is_anything(lines: list[str], authority: Path) -> None:
    assert_sound_or_placed("mosquitto", lines, authority)


@FEW
@given(lines=spoiled(emqx_conf(), " = "))
def test_one_line_of_emqx_is_anything(lines: list[str], authority: Path) -> None:
    assert_sound_or_placed("emqx", lines, authority)
