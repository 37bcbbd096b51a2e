"""Completion and man pages say what the commands take; the shells that are here complete by them."""

import datetime
import shutil
import subprocess
from pathlib import Path

import pytest

from taipan.management.commands.command_tree import of_ctl
from taipan.management.commands.completion import SHELLS, manual_page
from taipan.management.ctl.index import COMMANDS
from taipan.management.ctl.main import OPTIONS
from taipan.management.node import main
from tests.support.absent import reason


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_every_control_command_is_in_the_tree() -> None:
    assert set(OPTIONS) <= {name for option in of_ctl().options for name in option.names}
    paths = {path for path, words in of_ctl().all() if words.summary}
    for command in COMMANDS:
        assert any(command.usage.split()[: len(path)] == list(path) for path in paths if path) or "|" in command.usage


@pytest.mark.skipif(shutil.which("bash") is None, reason=reason("bash"))
@pytest.mark.parametrize(
    "line, found",
    [
        ("taipan in", {"init", "install-service"}),
        ("taipan cluster ", {"try", "-h", "--help"}),
        ("taipan cluster try --no", {"--nodes"}),
        ("taipan-ctl clients li", {"list"}),
        ("taipan-ctl --json clients li", {"list"}),
        ("taipan-ctl nothing li", {"listeners"}),
    ],
)
def test_bash(line: str, found: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "completion"
    script.write_text(printed(capsys, "completion", "bash"))
    words = " ".join(f"'{word}'" for word in line.split(" "))
    function = f"_{line.split()[0].replace('-', '_')}"
    told = run(
        "bash", "-c", f'source {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); {function}; '
        'printf "%s\\n" "${COMPREPLY[@]}"',
    )  # fmt: skip
    assert set(told.split()) == found


@pytest.mark.skipif(shutil.which("fish") is None, reason=reason("fish"))
def test_fish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "taipan.fish"
    script.write_text(printed(capsys, "completion", "fish"))
    told = run("fish", "-c", f"source {script}; complete -C 'taipan-ctl clients '")
    assert "list" in {line.split("\t")[0] for line in told.splitlines()}


@pytest.mark.skipif(shutil.which("zsh") is None, reason=reason("zsh"))
def test_zsh_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "_taipan"
    script.write_text(printed(capsys, "completion", "zsh"))
    run("zsh", "-n", str(script))
    told = run("zsh", "-f", "-c", f"service=none; source {script}; _taipan_ctl_words clients; print -l $found")
    assert any(line.startswith("list:") for line in told.splitlines())


@pytest.mark.parametrize("program", ["taipan", "taipan-ctl"])
def test_manual(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, "manual", program)
    assert page.startswith(f'.TH {program.upper()} 1 "')
    if shutil.which("man"):
        done = subprocess.run(
            ["man", "--warnings", "-l", "-"], input=page, capture_output=True, text=True, check=True, timeout=30
        )
        assert not done.stderr
        assert "SYNOPSIS" in done.stdout


def test_a_page_has_the_day_it_was_made(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert '"1970-01-02"' in printed(capsys, "manual", "taipan")
    assert '"2026-01-01"' in manual_page("taipan", of_ctl(), datetime.date(2026, 1, 1))


def test_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "choose from" in capsys.readouterr().err
    assert set(SHELLS) == {"bash", "fish", "zsh"}
