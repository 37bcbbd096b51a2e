"""``taipan --workers 2`` where something is wrong from the start: one line says what, and nothing is left running."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taipan.management.data_dir import DataDir
from tests.support.node import NO_DASHBOARD, free_port
from tests.support.patience import patience

HURRIED = (
    "from taipan.management.workers import supervisor;"
    "from taipan.management import node;"
    "supervisor._NATS_LISTENS_IN = 0.5;"
    "raise SystemExit(node.main())"
)


AS_OTHERS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")


def started(directory: Path, data_dir: Path, nats: str = "", denied: bool = False) -> tuple[int, str]:
    """The exit status, and what is printed. ``nats``: the text of a program that is found as nats-server. ``denied``:
    permissions of files apply to root, too."""
    config = directory / "taipan.toml"
    config.write_text(
        f'[node]\ndata_dir = "{data_dir}"\nworkers = 2\n'
        f'[[listeners]]\nname = "tcp"\ntype = "tcp"\nbind = "127.0.0.1:{free_port()}"\n'
    )
    path = os.environ["PATH"]
    if nats:
        program = directory / "bin" / "nats-server"
        program.parent.mkdir()
        program.write_text(nats)
        program.chmod(0o755)
        path = f"{program.parent}{os.pathsep}{path}"
    environment = {**os.environ, **NO_DASHBOARD, "TAIPAN__MANAGEMENT__BIND": "127.0.0.1:0", "PATH": path}
    command = [sys.executable, "-c", HURRIED, "--config", str(config)]
    if denied and os.geteuid() == 0:
        command = [*AS_OTHERS, *command]
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[3], timeout=patience(50), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert "Traceback" not in done.stdout, done.stdout
    return done.returncode, done.stdout


def reason(output: str) -> str:
    (line,) = [line for line in output.splitlines() if line.startswith("taipan: ")]
    return line


@pytest.mark.parametrize("below, error", [("", "File exists"), ("data", "Not a directory")])
def test_a_data_directory_that_cannot_be_created(tmp_path: Path, below: str, error: str) -> None:
    file = tmp_path / "file"
    file.touch()
    status, output = started(tmp_path, file / below)
    assert (status, reason(output)) == (1, f"taipan: cannot start: node.data_dir {file / below}: {error}")


def test_a_data_directory_that_may_not_be_used(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(0o000)
    status, output = started(tmp_path, closed, denied=True)
    assert (status, reason(output)) == (1, f"taipan: cannot start: node.data_dir {closed}: Permission denied")


def test_a_second_supervisor(tmp_path: Path) -> None:
    held = DataDir(str(tmp_path / "data" / "worker-nats"), of=str(tmp_path / "data"))
    status, output = started(tmp_path, tmp_path / "data")
    expected = f"node.data_dir {tmp_path / 'data'}: in use by process {os.getpid()}; each node needs its own"
    assert (status, reason(output)) == (1, f"taipan: cannot start: {expected}")
    held.close()


@pytest.mark.parametrize(
    "program, words",
    [
        ("#!/bin/sh\nexit 3\n", "nats-server ended with status 3; its log: "),
        ("#!/bin/sh\nkill -9 $$\n", "nats-server ended by SIGKILL; its log: "),
        ("#!/bin/sh\nexec sleep 60\n", "nats-server does not listen within 0.5 s; its log: "),
        ("\x7fELF of another machine", "nats-server ended with status 1; its log: "),
    ],
)
def test_a_nats_server_that_does_not_run(tmp_path: Path, program: str, words: str) -> None:
    status, output = started(tmp_path, tmp_path / "data", program)
    assert status == 1 and reason(output).startswith(f"taipan: cannot start: {words}{tmp_path / 'data'}")
    if program.startswith("\x7f"):
        assert f"{tmp_path / 'bin' / 'nats-server'}: Exec format error" in output
