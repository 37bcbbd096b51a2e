"""``taipan hash-password``: at a terminal, and from the input."""

import io
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.scram import ScramVerifier
from taipan.management.configuration.config import load
from taipan.management.node import main


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


@pytest.mark.parametrize("said, password", [("secret\n", "secret"), ("a b \r\n", "a b "), ("last", "last")])
def test_hash_password(
    said: str, password: str, say: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    say(said)
    assert main(["hash-password"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    stored = ScryptHash.parse(tomllib.loads(line)["password_hash"])
    assert stored.verify(password.encode())


def test_hash_password_prints_a_table_the_configuration_takes(
    tmp_path: Path, say: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    say("secret\n")
    assert main(["hash-password", "--user", 'a"b\\c', "--scram"]) == 0
    path = tmp_path / "users.toml"
    path.write_text(capsys.readouterr().out)
    (user,) = load(str(path), environ={}).broker.access.users
    assert user.username == 'a"b\\c'
    assert ScryptHash.parse(user.password_hash).verify(b"secret")
    assert ScramVerifier.parse(user.scram).iterations >= 4096


@pytest.mark.parametrize(
    "said, arguments, error",
    [
        ("\n", [], "the password is empty"),
        ("", [], "the password is empty"),
        ("a\x07\n", ["--scram"], "the character U+0007 is prohibited"),
        ("a\n", ["--user", "a\nb"], "the username is empty or not printable"),
        ("a\n", ["--user", ""], "the username is empty or not printable"),
        ("a\n", ["--user", "\u2168", "--scram"], "with --scram the username must be in SASLprep form"),
    ],
)
def test_hash_password_refuses(
    said: str, arguments: list[str], error: str, say: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    say(said)
    assert main(["hash-password", *arguments]) == 1
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"taipan: {error}\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("given_up", [EOFError, KeyboardInterrupt])
def test_hash_password_that_is_given_up(
    given_up: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(prompt: str) -> str:
        raise given_up

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", ask)
    assert main(["hash-password"]) == 1
    assert capsys.readouterr().err == "\ntaipan: no password was given\n"


def test_hash_password_asks_twice_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal())
    answers = iter(["secret", "secret", "secret", "sceret"])
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(answers))
    assert main(["hash-password"]) == 0
    assert main(["hash-password"]) == 1
    output = capsys.readouterr()
    assert output.out.startswith('password_hash = "scrypt$')
    assert output.err == "taipan: the two passwords differ\n"
