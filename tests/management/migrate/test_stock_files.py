"""The files that EMQX and Mosquitto ship with, of each version, and with certificates: what is migrated can be used."""

import re
import shutil
from pathlib import Path

import pytest

from taipan.broker.config import BrokerSettings
from taipan.management.configuration.config import load
from taipan.management.migrate import output
from taipan.management.migrate.fitting import fit
from taipan.management.migrate.mosquitto import migrate_mosquitto
from taipan.management.migrate.output import Migration
from taipan.management.node import main
from tests.support.certificates import Certificates

STOCK = Path(__file__).parent / "stock"
EMQX = sorted(STOCK.glob("emqx-*.conf"))
MOSQUITTO = sorted(STOCK.glob("mosquitto-*.conf"))


def certificates(directory: Path) -> None:
    directory.mkdir(parents=True)
    authority = Certificates(directory)
    certfile, keyfile = authority.issue("localhost")
    shutil.copy(certfile, directory / "cert.pem")
    shutil.copy(keyfile, directory / "key.pem")
    shutil.copy(authority.ca, directory / "cacert.pem")


def etc(tmp_path: Path, text: str) -> Path:
    directory = tmp_path / "emqx" / "etc"
    certificates(directory / "certs")
    (directory / "emqx.conf").write_text(text)
    (directory / "acl.conf").write_text('{allow, {user, "dashboard"}, subscribe, ["$SYS/#"]}.\n{allow, all}.\n')
    return directory


def migrated(source: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[BrokerSettings, str]:
    into = tmp_path / "into"
    assert main(["migrate", source, str(path), "--into", str(into)]) == 0, capsys.readouterr()
    told = capsys.readouterr().out
    assert main(["check", str(into / "taipan.toml")]) == 0
    return load(str(into / "taipan.toml"), environ={}).broker, told


@pytest.mark.parametrize("stock", EMQX, ids=lambda path: path.stem)
def test_emqx(stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, told = migrated("emqx", etc(tmp_path, stock.read_text()), tmp_path, capsys)
    kinds = [(each.type, each.bind) for each in found.listeners]
    assert kinds == [
        ("tcp", "0.0.0.0:1883"),
        ("tcp", "127.0.0.1:11883"),
        ("ssl", "0.0.0.0:8883"),
        ("ws", "0.0.0.0:8083"),
        ("wss", "0.0.0.0:8084"),
    ]
    for listener in found.listeners:
        if listener.tls is not None:
            assert (listener.tls.verify, listener.tls.cafile) == ("none", "")
        assert listener.allowed_origins == []  # check_origin_enable = false: EMQX checks none
    assert found.zones["external"].flapping_threshold == 0  # enable_flapping_detect = off
    if "\nlistener.ssl.external.cacertfile" in stock.read_text():
        assert "listener.ssl.external.cacertfile etc/certs/cacert.pem: it is used only for client certificates" in told
        assert "carried: listener.ssl.external.cacertfile" not in told


@pytest.mark.parametrize("stock", EMQX[-2:], ids=lambda path: path.stem)
def test_emqx_with_client_certificates(stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = stock.read_text().replace("## listener.ssl", "listener.ssl")
    found, _ = migrated("emqx", etc(tmp_path, text), tmp_path, capsys)
    tls = found.listeners[2].tls
    assert tls is not None and tls.verify == "required" and tls.cafile.endswith("etc/certs/cacert.pem")


@pytest.mark.parametrize("stock", MOSQUITTO, ids=lambda path: path.stem)
def test_mosquitto(stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certificates(tmp_path / "certs")
    path = tmp_path / "mosquitto.conf"
    path.write_text(stock.read_text().replace("CERTS", str(tmp_path / "certs")))
    found, told = migrated("mosquitto", path, tmp_path, capsys)
    tls = found.listeners[-1].tls
    assert tls is not None and (tls.verify, tls.cafile) == ("none", "")
    assert f"left out: cafile {tmp_path}/certs/cacert.pem: it is used only for client certificates" in told


def test_the_configuration_of_debian(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "conf.d").mkdir()
    path = tmp_path / "mosquitto.conf"
    path.write_text(
        f"pid_file /run/mosquitto/mosquitto.pid\npersistence true\npersistence_location {tmp_path}/\n"
        f"log_dest file /var/log/mosquitto/mosquitto.log\ninclude_dir {tmp_path}/conf.d\n"
    )
    found, _ = migrated("mosquitto", path, tmp_path, capsys)
    assert [each.bind for each in found.listeners] == ["127.0.0.1:1883"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("zone.external.idle_timeout = 15s", "zone.external.idle_timeout = 0s", "zones.external.idle_timeout has its"),
        ("acl_cache_ttl = 1m", "acl_cache_ttl = 0s", "access.cache = false"),
        ("acl_cache_max_size = 32", "acl_cache_max_size = 0", "access.cache_max_size = 1, the nearest"),
        ("listener.tcp.external.backlog = 1024", "listener.tcp.external.backlog = 0", "listeners.0.backlog = 1, the"),
        ("mqtt.max_packet_size = 1MB", "mqtt.max_packet_size = 1GB", "zones.external.max_packet_size = 268435460"),
        ("handshake_timeout = 15s", "handshake_timeout = 0s", "listeners.2.tls.handshake_timeout has its default"),
        ("await_rel_timeout = 300s", "await_rel_timeout = 0s", "zones.external.await_rel_timeout has its default"),
        ("strategy = random", "strategy = hash", "shared.strategy = hash_clientid"),
        ("listener.ssl.external = 8883", "listener.ssl.external = ::1:8883", "ssl external, [::1]:8883"),
        (
            "listener.ws.external = 8083",
            "listener.ws.external = 8081",
            "management.bind: 127.0.0.1:8082: an MQTT listener",
        ),
        (
            "listener.ws.external = 8083",
            "listener.ws.external = 18083",
            "dashboard.bind: 127.0.0.1:18084: an MQTT listener",
        ),
    ],
)
def test_what_emqx_accepts_is_made_to_fit(
    before: str, after: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (STOCK / "emqx-4.4.conf").read_text()
    assert before in text
    _, told = migrated("emqx", etc(tmp_path, text.replace(before, after)), tmp_path, capsys)
    assert said in told


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("node.name = emqx@127.0.0.1", "node.name = emqx"),
        ("acl_nomatch = allow", "acl_nomatch = perhaps"),
        ("mqtt.max_qos_allowed = 2", "zone.external.mountpoint = a/#"),
        ("listener.tcp.external = 0.0.0.0:1883", "listener.tcp.external = 0.0.0.0:11883"),
        ("strategy = random", "strategy = other"),
    ],
)
def test_what_cannot_be_made_to_fit_is_told_by_its_line(
    before: str, after: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (STOCK / "emqx-4.4.conf").read_text()
    assert before in text
    directory = etc(tmp_path, text.replace(before, after))
    assert main(["migrate", "emqx", str(directory), "--into", str(tmp_path / "into")]) == 2
    captured = capsys.readouterr()
    (line,) = captured.out.splitlines()
    place = line.partition(": wrong: ")[0]
    file, _, number = place.rpartition(":")
    assert Path(file).read_text().splitlines()[int(number) - 1].partition(" ")[0] in text.replace(before, after)
    assert Path(file) == directory / "emqx.conf" and "taipan.toml" not in captured.out + captured.err
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize("line", ["mqtt.exclusive_subscription", "zone.external.exclusive_subscription"])
def test_exclusive_subscriptions_of_emqx(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (STOCK / "emqx-4.4.conf").read_text() + f"\n{line} = true\n"
    found, _ = migrated("emqx", etc(tmp_path, text), tmp_path, capsys)
    assert found.zones["external"].exclusive_subscription


def test_mosquitto_at_the_ports_of_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text("listener 8081 0.0.0.0\nlistener 8082 127.0.0.1\nlistener 18083 127.0.0.1\nmemory_limit 1000\n")
    found, told = migrated("mosquitto", path, tmp_path, capsys)
    assert len(found.listeners) == 3 and found.limits.memory == 67_108_864
    settings = load(str(tmp_path / "into" / "taipan.toml"), environ={})
    assert (settings.management.bind, settings.dashboard.bind) == ("127.0.0.1:8083", "127.0.0.1:18084")
    assert "limits.memory = 67108864, the minimum that a node accepts" in told


def test_the_last_resort_names_the_source(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    path.write_text("listener 1883 127.0.0.1\n")
    migration: Migration = migrate_mosquitto(path)
    migration.set("node", "name", "no name")
    fit(migration)
    (entry,) = migration.report.of("wrong")
    assert (entry.place, entry.what) == (str(path), 'node.name = "no name"')


def test_no_report_names_a_page_that_is_not_installed() -> None:
    """The pages lie in Taipan's sources; a wheel has none of them."""
    named = [
        f"{file.name}:{number}: {line.strip()}"
        for file in Path(output.__file__).parent.glob("*.py")
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if re.search(r"docs/[\w/-]+\.md", line)
    ]
    assert named == []
