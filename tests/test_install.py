"""What uv is told of pip's settings, and who installs where one of them cannot; nothing is installed here."""

import subprocess
from typing import Any

import pytest

import install


class Machine:
    """Its commands, in order; those whose words hold one of ``fails`` fail."""

    def __init__(self, config: str = "", *fails: str) -> None:
        self.config = config
        self.fails = fails
        self.commands: list[str] = []
        self.environments: list[dict[str, str]] = []

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        words = " ".join(command[2:])
        if words.endswith("config list"):
            return subprocess.CompletedProcess(command, 0, self.config, "")
        self.commands.append(words)
        self.environments.append(options.get("env") or {})
        return subprocess.CompletedProcess(command, int(any(word in words for word in self.fails)))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    def machine(config: str = "", *fails: str) -> Machine:
        made = Machine(config, *fails)
        monkeypatch.setattr(install.subprocess, "run", made.run)
        monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: None)
        return made

    for name in ("UV_DEFAULT_INDEX", "SSL_CERT_FILE", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return machine


def by_whom(machine: Machine) -> list[str]:
    """Of each command its program, and uv where uv is what is installed."""
    return ["pip: uv" if install.UV in words else words.split()[0] for words in machine.commands]


def test_uv_is_installed_and_installs(on: Any) -> None:
    machine = on()
    assert install.install(["package"]) and by_whom(machine) == ["pip: uv", "uv"]


def test_uv_asks_the_index_of_pip(on: Any) -> None:
    machine = on(
        "global.cert='/ours.crt'\nglobal.index-url='https://file/'\n:env:.index-url='https://ours/simple'\n"
        "install.proxy='http://proxy:1'\n"
    )
    assert install.install(["package"])
    told = machine.environments[-1]
    assert told["UV_DEFAULT_INDEX"] == "https://ours/simple"
    assert told["SSL_CERT_FILE"] == "/ours.crt" and told["ALL_PROXY"] == "http://proxy:1"


@pytest.mark.parametrize(
    "config, fails, expected",
    [
        ("global.no-index='true'\n", (), ["pip"]),
        ("", (install.UV,), ["pip: uv", "pip"]),
        ("", ("uv pip",), ["pip: uv", "uv", "pip"]),
    ],
)
def test_pip_installs_where_uv_cannot(config: str, fails: tuple[str, ...], expected: list[str], on: Any) -> None:
    machine = on(config, *fails)
    assert install.install(["package"]) and by_whom(machine) == expected


def test_where_neither_can_it_says_so(on: Any) -> None:
    machine = on("", "install")
    assert not install.install(["package"]) and by_whom(machine) == ["pip: uv", "pip"]
