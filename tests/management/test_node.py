"""The ``taipan`` command, in this process where it only prints, else as a process of its own."""

import importlib.metadata
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from taipan.broker.config import ListenerSettings, ZoneSettings
from taipan.management.configuration.config import TABLES, load
from taipan.management.configuration.setting_types import struct_in
from taipan.management.configuration.validation import expected
from taipan.management.node import main
from tests.support.certificates import Certificates
from tests.support.fixtures import certificates as certificates
from tests.support.no_package import path_without
from tests.support.node import NO_DASHBOARD

ROOT = Path(__file__).parents[2]
ANY_PORT = ("--set", "listeners.0.bind=127.0.0.1:0", "--set", "listeners.1.bind=127.0.0.1:0")
TIMEOUT = 40.0


@pytest.fixture(autouse=True)
def own_data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node keeps its data for itself, where a test does not say otherwise; ``Process`` keeps the variable."""
    monkeypatch.setenv("TAIPAN__NODE__DATA_DIR", str(tmp_path / "data"))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"taipan \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_wrong_configuration_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(tmp_path / "absent.toml")]) == 1
    assert capsys.readouterr().err == f"taipan: {tmp_path}/absent.toml: No such file or directory\n"


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds no package of the extras."""
    return {"PYTHONPATH": path_without(tmp_path / "plain", "bcrypt", "uvloop", "nkeys")}


class Process:
    """A node of its own; what it wrote to stderr is in ``log``."""

    def __init__(self, *arguments: str, env: Mapping[str, str | None] | None = None) -> None:
        """``env``: variables beside those that every test has; None takes one of these away."""
        kept = "TAIPAN__NODE__DATA_DIR"  # of ``own_data_dir``
        environ = {name: value for name, value in os.environ.items() if name == kept or not name.startswith("TAIPAN__")}
        given: dict[str, str | None] = {**environ, "TAIPAN__MANAGEMENT__BIND": "127.0.0.1:0", **NO_DASHBOARD}
        given |= env or {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "taipan.management.node", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env={name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
        self.log: list[str] = []

    def ready(self) -> str:
        assert self.process.stdout is not None
        line = ""
        while not line.startswith("taipan ready"):
            line = self.process.stdout.readline()
            if not line:
                break
        return line

    def wait_for(self, event: str) -> str:
        """Read the log up to a line with ``event``."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if event in line:
                return line
        raise AssertionError(f"no {event!r} in {self.log}")

    def end(self, number: signal.Signals | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=TIMEOUT)
        self.log.extend(rest.splitlines(keepends=True))
        return self.process.returncode


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def run(*arguments: str, env: Mapping[str, str | None] | None = None) -> Process:
        started.append(Process(*arguments, env=env))
        return started[-1]

    yield run
    for node in started:
        if node.process.poll() is None:
            node.process.kill()
            node.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_runs_and_stops(start: Callable[..., Process], number: signal.Signals) -> None:
    node = start(*ANY_PORT)
    ready = re.fullmatch(
        r"taipan ready version=(\S+) node=taipan@127\.0\.0\.1 "
        r"default=tcp:127\.0\.0\.1:(\d+) websocket=ws:127\.0\.0\.1:(\d+) management=http://127\.0\.0\.1:\d+\n",
        node.ready(),
    )
    assert ready is not None
    with socket.create_connection(("127.0.0.1", int(ready[2])), timeout=TIMEOUT) as client:
        client.sendall(bytes.fromhex("100d00044d5154540402003c000161"))  # CONNECT, 3.1.1, clean session, "a"
        assert client.recv(4) == bytes.fromhex("20020000")
    assert node.end(number) == 0
    assert not any("Traceback" in line for line in node.log)
    assert any(f"stopping signal={number.name}" in line for line in node.log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_waits_for_nats(start: Callable[..., Process], number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node = start(
            *ANY_PORT,
            "--set", f'cluster.servers=["nats://127.0.0.1:{silent.getsockname()[1]}"]',
            "--set", "cluster.connect_timeout=600",
        )  # fmt: skip
        silent.settimeout(TIMEOUT)
        connection, _ = silent.accept()
        with connection:
            assert node.end(number) == 0
    assert any(f"stopping signal={number.name}" in line for line in node.log)
    assert "stopped" in node.log[-1] and not any("Traceback" in line for line in node.log)


def test_a_node_of_the_plain_installation(start: Callable[..., Process], plain: dict[str, str]) -> None:
    """It serves, on asyncio's loop, and says how to get the other."""
    node = start(*ANY_PORT, env=plain)
    port = re.search(r" default=tcp:127\.0\.0\.1:(\d+) ", node.ready())
    assert port is not None
    said = node.wait_for("event_loop ")
    assert said.endswith('event_loop name=asyncio detail="uvloop is faster: pip install uvloop"\n')
    with socket.create_connection(("127.0.0.1", int(port[1])), timeout=TIMEOUT) as client:
        client.sendall(bytes.fromhex("100d00044d5154540402003c000161"))  # CONNECT, 3.1.1, clean session, "a"
        assert client.recv(4) == bytes.fromhex("20020000")
    assert node.end(signal.SIGTERM) == 0


def test_the_loop_of_a_node_with_uvloop(start: Callable[..., Process]) -> None:
    node = start(*ANY_PORT)
    assert node.ready().startswith("taipan ready")
    assert f"event_loop name=uvloop version={importlib.metadata.version('uvloop')}" in node.wait_for("event_loop ")
    assert node.end(signal.SIGTERM) == 0


def test_one_line_when_it_cannot_start(start: Callable[..., Process]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = start(*ANY_PORT, "--set", f"listeners.1.bind=127.0.0.1:{port}", "--set", "log.level=error")
        assert node.end() == 1
    (line,) = node.log
    assert line.startswith("taipan: cannot start: ")
    assert f"--set listeners.1.bind=127.0.0.1:{port % 65_535 + 1}" in line


def test_the_way_out_when_the_port_of_the_api_is_taken(start: Callable[..., Process]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = start(*ANY_PORT, "--set", f"management.bind=127.0.0.1:{port}", "--set", "log.level=error")
        assert node.end() == 1
    (line,) = node.log
    assert (
        f"management.bind 127.0.0.1:{port}: " in line and f"--set management.bind=127.0.0.1:{port % 65_535 + 1}" in line
    )


def test_the_way_out_when_the_port_of_the_dashboard_is_taken(start: Callable[..., Process]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        on = ("--set", "dashboard.enabled=true", "--set", f"dashboard.bind=127.0.0.1:{port}")
        node = start(*ANY_PORT, *on, "--set", "log.level=error")
        assert node.end() == 1
    (line,) = node.log
    assert f"dashboard.bind 127.0.0.1:{port}: " in line
    assert f"--set dashboard.bind=127.0.0.1:{port % 65_535 + 1}" in line


def test_the_first_start_prints_where_the_dashboard_is(start: Callable[..., Process]) -> None:
    node = start(*ANY_PORT, "--set", "dashboard.enabled=true", "--set", "dashboard.bind=127.0.0.1:0")
    assert re.search(r" dashboard=http://127\.0\.0\.1:\d+\n$", node.ready())
    assert node.end(signal.SIGTERM) == 0


def test_two_small_nodes_without_management_share_a_machine(
    start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither takes a port that it was not given."""
    config = tmp_path / "taipan.toml"
    config.write_text('[management]\nenabled = false\n[dashboard]\nbind = "127.0.0.1:1"\n')  # which fails, if tried
    for name in ("a", "b"):
        directory = ("--set", f"node.data_dir={tmp_path / name}")
        node = start("--config", str(config), *ANY_PORT, *directory, env={"TAIPAN__DASHBOARD__ENABLED": None})
        ready = node.ready()
        assert "dashboard=" not in ready and "management=" not in ready


def test_a_file_without_its_option_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a file.conf"
    file.write_text("")
    for arguments in ([str(file)], ["--set", "node.name=a@b", str(file)]):
        assert main(arguments) == 2
    assert main(["absent.toml"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        *[f"taipan: use --config to specify a configuration file: taipan --config '{file}'"] * 2,
        "taipan: use --config to specify a configuration file: taipan --config absent.toml",
    ]


def test_c_is_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("nod = 1\n")
    assert main(["-c", str(file)]) == 1
    assert f"{file}:1: nod: unknown key" in capsys.readouterr().err


def test_print_defaults_is_a_file_with_every_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is printed it says what is so anyway; with each # before a setting taken away, no key of it is unknown."""
    assert main(["--print-defaults"]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "defaults.toml"
    file.write_text(printed)
    assert main(["check", str(file)]) == 0
    assert load(str(file), environ={}) == load(None, environ={})
    shown = tomllib.loads(re.sub(r"^#(?=\w+ = |\[)", "", printed, flags=re.M))
    words = " ".join(line.removeprefix("# ") for line in printed.splitlines())
    for path, kind in every_setting():
        assert has(shown, path), path
        assert expected(kind) in words
    for note in ("new connections a second; 0: no limit", "How often a message may be republished"):
        assert note in words, "the notes of a table are left out"
    assert ", required " in words


def every_setting() -> Iterator[tuple[list[str], Any]]:
    """Each key that settings can have, by the types."""

    def of(struct: type[msgspec.Struct], path: list[str]) -> Iterator[tuple[list[str], Any]]:
        for field in msgspec.structs.fields(struct):
            inner = struct_in(field.type)
            if inner is None:
                yield [*path, field.name], field.type
            else:
                yield from of(inner, [*path, field.name])

    for name, struct in TABLES.items():
        yield from of(struct, [name])
    yield from of(ListenerSettings, ["listeners"])
    yield from of(ZoneSettings, ["zones", "external"])


def has(table: Any, path: list[str]) -> bool:
    if path and isinstance(table, list):
        return any(has(each, path) for each in table)
    return not path or (path[0] in table and has(table[path[0]], path[1:]))


def test_one_line_when_the_store_is_of_a_newer_version(start: Callable[..., Process], tmp_path: Path) -> None:
    arguments = (*ANY_PORT, "--set", "durability.level=disk", "--set", f"node.data_dir={tmp_path}")
    node = start(*arguments)
    node.ready()
    assert node.end(signal.SIGTERM) == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["lock", "taipan.check", "taipan.db", "taipan.history"]
    database = apsw.Connection(str(tmp_path / "taipan.db"))
    database.execute(f"PRAGMA user_version={99 << 16 | 99}")
    database.close()
    node = start(*arguments, "--set", "log.level=error")
    assert node.end() == 1
    (line,) = node.log
    assert line.startswith("taipan: cannot start: ") and "newer version" in line and "taipan.db" in line


def test_reload(start: Callable[..., Process], tmp_path: Path) -> None:
    config = tmp_path / "taipan.toml"
    config.write_text("")
    node = start("--config", str(config), *ANY_PORT)
    node.ready()
    config.write_text('[log]\nformat = "json"\n[access]\nno_match = "deny"\n')
    node.process.send_signal(signal.SIGHUP)
    assert json.loads(node.wait_for('"reloaded"'))["logger"] == "taipan.management.node"
    config.write_text("\n[nod]\n")
    node.process.send_signal(signal.SIGHUP)
    # The old settings, JSON lines among them, are kept.
    refused = json.loads(node.wait_for("reload_failed"))
    assert refused["error"] == f'{config}:2: nod: unknown key; did you mean "node"?'
    config.write_text('[node]\nname = "other@host"')
    node.process.send_signal(signal.SIGHUP)
    assert "[node]" in json.loads(node.wait_for("reload_failed"))["error"]
    # Nobody writes to it, and a node that waited for that would be lost.
    config.unlink()
    os.mkfifo(config)
    node.process.send_signal(signal.SIGHUP)
    assert json.loads(node.wait_for("reload_failed"))["error"] == f"{config}: not a regular file"
    assert node.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("setting", ["certfile", "keyfile", "cafile", "crlfile", "jwks_file", "http.cafile", "tls_ca"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_files_that_a_configuration_names_are_never_waited_for(
    tmp_path: Path, certificates: Certificates, capsys: pytest.CaptureFixture[str], setting: str, kind: str
) -> None:
    """Those that a reload reads, on the loop of the node."""
    path = tmp_path / "named.pem"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    certificates.issue("localhost")
    tls = certificates.settings()
    named = {"certfile": tls.certfile, "keyfile": tls.keyfile, "cafile": tls.certfile, "verify": "required"}
    text = ""
    if setting == "jwks_file":
        text = f'[access.jwt]\njwks_file = "{path}"\nalgorithms = ["RS256"]'
    elif setting == "http.cafile":
        text = f'[access.http]\nauth_url = "https://127.0.0.1:1/"\ncafile = "{path}"'
    elif setting == "tls_ca":
        text = f'[cluster]\nname = "c"\nservers = ["tls://127.0.0.1:1"]\ntls_ca = "{path}"'
    else:
        named[setting] = str(path)
        text = '[[listeners]]\nname = "a"\ntype = "ssl"\nbind = "127.0.0.1:0"\n[listeners.tls]\n'
        text += "\n".join(f'{key} = "{value}"' for key, value in named.items())
    config = tmp_path / "taipan.toml"
    config.write_text(text)
    assert main(["check", str(config)]) == 1
    said = capsys.readouterr().err
    assert "named.pem" in said and "not a regular file" in said


def test_systemd_is_told(start: Callable[..., Process], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(TIMEOUT)
        systemd.bind(str(tmp_path / "notify"))
        node = start(*ANY_PORT, env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert systemd.recv(100) == b"READY=1"
        node.process.send_signal(signal.SIGHUP)
        assert re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=\d+", systemd.recv(100))
        assert systemd.recv(100) == b"READY=1"
        node.process.send_signal(signal.SIGTERM)
        assert systemd.recv(100) == b"STOPPING=1"
        assert node.end() == 0


def test_systemd_is_told_that_the_loop_turns(start: Callable[..., Process], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(TIMEOUT)
        systemd.bind(str(tmp_path / "notify"))
        node = start(*ANY_PORT, env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"})
        assert [systemd.recv(100) for _ in range(4)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        assert node.end(signal.SIGTERM) == 0


def test_environment_and_file_limit(start: Callable[..., Process]) -> None:
    node = start(
        env={"TAIPAN__LISTENERS": "[{name='only', type='tcp', bind='127.0.0.1:0'}]", "TAIPAN__LOG__LEVEL": "debug"}
    )
    assert " only=tcp:127.0.0.1:" in node.ready()
    limits = Path(f"/proc/{node.process.pid}/limits")
    if limits.exists():
        soft, hard = re.search(r"Max open files +(\d+) +(\d+)", limits.read_text()).groups()  # type: ignore[union-attr]
        assert soft == hard
    assert node.end(signal.SIGTERM) == 0
