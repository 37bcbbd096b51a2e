"""``taipan init``: what it writes starts a node, and lets in whom it should."""

import asyncio
import io
import os
import re
import shutil
import ssl
import stat
from pathlib import Path

import pytest

from taipan.management.configuration.config import load
from taipan.management.node import main
from tests.support.node import Node

pytestmark = pytest.mark.usefixtures("no_terminal")


@pytest.fixture
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))


def test_without_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "new" / "node")]) == 0
    file = tmp_path / "new" / "node" / "taipan.toml"
    settings = load(str(file), environ={})
    assert settings.broker.node.data_dir == str(tmp_path / "new" / "node" / "data")
    assert [each.bind for each in settings.broker.listeners] == ["127.0.0.1:1883", "127.0.0.1:8083"]
    assert [each.name for each in file.parent.iterdir()] == ["taipan.toml"]
    said = capsys.readouterr().out
    assert f"taipan --config {file}" in said
    assert "mosquitto_sub -t 'garden/#'" in said


def test_it_names_no_page_that_is_not_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pages lie in the sources; a wheel has none of them."""
    assert main(["init", str(tmp_path), "--address", "0.0.0.0", "--anonymous"]) == 0
    assert main(["--print-defaults"]) == 0
    for text in ((tmp_path / "taipan.toml").read_text("utf-8"), capsys.readouterr().out):
        assert "docs/" not in text
    text = (tmp_path / "taipan.toml").read_text("utf-8")
    assert (
        "# Who may do what.\n" in text and "# JSON Web Tokens. Requires" in text and "taipan --print-defaults" in text
    )


def test_a_user_and_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("se cret\n"))
    assert main(["init", str(tmp_path), "--address", "0.0.0.0", "--user", 'a"nn', "--tls", "broker", "10.0.0.7"]) == 0
    settings = load(str(tmp_path / "taipan.toml"), environ={})
    listeners = settings.broker.listeners
    assert [(each.type, each.bind) for each in listeners] == [
        ("tcp", "0.0.0.0:1883"), ("ws", "0.0.0.0:8083"), ("ssl", "0.0.0.0:8883"), ("wss", "0.0.0.0:8084"),
    ]  # fmt: skip
    [user] = settings.broker.access.users
    assert user.username == 'a"nn'
    assert main(["check", str(tmp_path / "taipan.toml")]) == 0
    said = capsys.readouterr().out
    assert "-u 'a\"nn' -P 'se cret'" in said
    for key in ("tls/ca.key", "tls/server.key", "taipan.toml"):
        assert stat.S_IMODE((tmp_path / key).stat().st_mode) == 0o600
    assert settings.broker.zones["external"].allow_anonymous is None


def test_a_random_password_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path), "--user", "ann"]) == 0
    [password] = re.findall(
        r"(?m)^MQTT clients: user ann password ([0-9A-Za-z]{43}) \(shown this once\)$", capsys.readouterr().out
    )
    assert password not in (tmp_path / "taipan.toml").read_text()


@pytest.mark.asyncio
async def test_a_node_that_was_made_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own authority proves it, by each name; the user comes in, and nobody else."""
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    await asyncio.to_thread(main, ["init", str(tmp_path), "--user", "ann", "--tls", "localhost", "127.0.0.1"])
    settings = load(str(tmp_path / "taipan.toml"), [f"listeners.{number}.bind=127.0.0.1:0" for number in range(4)], {})
    node = await Node(settings.broker).start()
    try:
        port = next(each.port for each in node.server.listeners if each.type == "ssl")
        trusted = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.pem"))
        for name in ("localhost", "127.0.0.1"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname=name)
            writer.write(b"\x10\x19\x00\x04MQTT\x04\xc2\x00\x3c\x00\x00\x00\x03ann\x00\x06secret")
            assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
            writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname="other")
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname="localhost")
        writer.write(b"\x10\x18\x00\x04MQTT\x04\xc2\x00\x3c\x00\x00\x00\x03ann\x00\x05wrong")
        assert await reader.readexactly(4) == b"\x20\x02\x00\x04"
        writer.close()
    finally:
        await node.stop()


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--address", "0.0.0.0"], "--user NAME, or --anonymous"),
        (["--address", "a:b:c]", "--anonymous"], "--address a:b:c]: not an address"),
        (["--tls", "nö..de"], "--tls nö..de: not all of these"),
        (["--user", "a\nb"], "--user: the name is not printable"),
    ],
)
def test_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["init", str(tmp_path / "d"), *arguments]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tls").mkdir()
    assert main(["init", str(tmp_path), "--tls"]) == 1
    assert f"{tmp_path / 'tls'} already exists, and nothing was written" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["tls"]
    (tmp_path / "tls").rmdir()
    assert main(["init", str(tmp_path)]) == 0
    before = (tmp_path / "taipan.toml").read_bytes()
    assert main(["init", str(tmp_path), "--anonymous"]) == 1
    assert (tmp_path / "taipan.toml").read_bytes() == before


def test_everybody(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path), "--address", "::", "--anonymous"]) == 0
    settings = load(str(tmp_path / "taipan.toml"), environ={})
    assert settings.broker.zones["external"].allow_anonymous is True
    assert settings.broker.listeners[0].bind == "[::]:1883"


def test_a_disk_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(os, "fsync", full)
    assert main(["init", str(tmp_path), "--tls"]) == 1
    assert not list(tmp_path.iterdir())


def test_asked_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    answers = iter(["", "ann", "y", "here there"])
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    monkeypatch.setattr("getpass.getpass", lambda _: "secret")
    assert main(["init", str(tmp_path)]) == 0
    settings = load(str(tmp_path / "taipan.toml"), environ={})
    assert [each.type for each in settings.broker.listeners] == ["tcp", "ws", "ssl", "wss"]
    assert [each.username for each in settings.broker.access.users] == ["ann"]
    shutil.rmtree(tmp_path / "tls")
