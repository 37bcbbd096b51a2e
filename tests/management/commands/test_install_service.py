"""``taipan install-service``: a unit that systemd reads without a word, and that leaves the node little to harm."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from taipan.management.commands import install_service
from taipan.management.configuration.config import load
from taipan.management.node import main
from tests.support.absent import reason


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``taipan`` for the whole machine."""
    program = tmp_path / "opt" / "bin" / "taipan"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.prefix", str(tmp_path / "opt"))
    return program


def unit_of(config: Path) -> str:
    return install_service.unit(install_service.program(), config)


def test_both_files(tmp_path: Path, installed: Path) -> None:
    config, unit = tmp_path / "etc" / "taipan.toml", tmp_path / "system" / "taipan.service"
    arguments = ["install-service", "--file", str(config), "--unit", str(unit)]
    assert main(arguments) == 0
    assert load(str(config), environ={}).broker.node.data_dir == "/var/lib/taipan"
    assert f"ExecStart={installed} --config {config}\n" in unit.read_text()
    config.write_text("# mine\n")
    assert main(arguments) == 0
    assert config.read_text() == "# mine\n"


def test_a_unit_of_others_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, unit = tmp_path / "taipan.toml", tmp_path / "taipan.service"
    unit.write_text("[Service]\n")
    arguments = ["install-service", "--file", str(config), "--unit", str(unit)]
    assert main(arguments) == 1
    assert "already exists with other contents: --force replaces it" in capsys.readouterr().err
    assert not config.exists()
    assert main([*arguments, "--force"]) == 0
    assert "ExecStart=" in unit.read_text()


def test_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install-service", "--print", "--file", str(tmp_path / "a.toml")]) == 0
    assert capsys.readouterr().out == unit_of(tmp_path / "a.toml")


@pytest.mark.parametrize(
    "program, config, said",
    [
        ("/home/ann/.local/bin/taipan", "/etc/taipan.toml", "which is hidden from services"),
        ("/opt/taipan", "/etc/with blank.toml", "a unit cannot contain"),
        ("/opt/taipan", "/etc/%i.toml", "a unit cannot contain"),
    ],
)
def test_what_cannot_be(
    program: str, config: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.prefix", "/nowhere")
    monkeypatch.setattr("shutil.which", lambda _: program)
    assert main(["install-service", "--print", "--file", config]) == 1
    assert said in capsys.readouterr().err


def analyze(*arguments: str) -> str:
    found = subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60)
    return found.stdout + found.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason=reason("systemd-analyze"))
def test_what_systemd_thinks_of_it(tmp_path: Path) -> None:
    unit = tmp_path / "taipan.service"
    unit.write_text(unit_of(tmp_path / "taipan.toml"))
    assert analyze("verify", str(unit)) == ""
    level = re.search(r"exposure level for taipan.service: ([\d.]+)", analyze("security", "--offline=true", str(unit)))
    assert level is not None
    assert float(level[1]) < 2.0
