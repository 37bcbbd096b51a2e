"""The ``taipan`` command as it is installed: started by its name, from a directory that is not the checkout.

What is started here starts processes of its own, which find the same modules.
"""

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.compiled import BUILT, MANIFEST, NO, ROOT, SUFFIX, VARIABLE, Compiled

LONG = 'SELECT payload FROM "t/#" WHERE ' + " or ".join(f"payload.x = {number}" for number in range(100))
NOTHING = {"name": "do_nothing", "params": {}}

assert len(LONG) > 1024, "that is parsed on the loop"


@pytest.fixture
def taipan(tmp_path: Path) -> Path:
    """The script that an installer makes of what ``pyproject.toml`` says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["taipan"].partition(":")
    script = tmp_path / "bin" / "taipan"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\n"
        f'if __name__ == "__main__":\n    sys.exit({function}())\n'
    )
    script.chmod(0o755)
    return script


class Installed:
    """A node that the command started in ``directory``."""

    def __init__(self, taipan: Path, directory: Path, way: str) -> None:
        directory.mkdir()
        arguments = ["--set", f"node.data_dir={directory}/data", "--set", "management.bind=127.0.0.1:0"]
        arguments += ["--set", "dashboard.bind=127.0.0.1:0"]
        for number in (0, 1):
            arguments += ["--set", f"listeners.{number}.bind=127.0.0.1:0"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TAIPAN_")}
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [taipan, *arguments], cwd=directory, env=environ | {VARIABLE: way}, text=True,
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self.process.stdout is not None
        said = ""
        while "taipan ready" not in said:
            line = self.process.stdout.readline()
            assert line, said + self.log.read_text()
            said += line
        [secret] = re.findall(r"curl -u (\S+) ", said)
        [self.api] = re.findall(r"management=(\S+)", said)
        self._headers = {"Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.api}/api/v4/{path}", data, self._headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.communicate(timeout=20)
        finally:
            self.process.kill()


@pytest.fixture
def start(taipan: Path, tmp_path: Path) -> Iterator[Callable[[str], Installed]]:
    started: list[Installed] = []

    def run(way: str) -> Installed:
        started.append(Installed(taipan, tmp_path / str(len(started)), way))
        return started[-1]

    yield run
    for each in started:
        each.end()


def as_compiled(directory: Path) -> Path:
    """A directory of modules as ``make compile`` makes one, with a copy of a source for an extension module."""
    module = Path("broker", "mqtt", "reason_codes.py")
    (directory / module).parent.mkdir(parents=True)
    shutil.copy(ROOT / module, directory / module)
    facts = {
        "suffix": SUFFIX,
        "modules": ["taipan.broker.mqtt.reason_codes"],
        "sources": Compiled.digests(ROOT),
        "sizes": {},
    }
    (directory / MANIFEST).write_text(json.dumps(facts), encoding="utf-8")
    return directory


@pytest.fixture(params=["interpreted", "as compiled", "compiled"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What ``TAIPAN_COMPILED`` says."""
    if request.param == "interpreted":
        return NO
    if request.param == "as compiled":
        return str(as_compiled(tmp_path / "built"))
    if Compiled(BUILT).unusable() is not None:
        pytest.skip("nothing is compiled here; make test-compiled has it")
    return ""


def test_a_long_rule_is_created_and_imported(start: Callable[[str], Installed], way: str) -> None:
    """Long SQL is parsed in a process of its own, which has to find the modules that the node has."""
    node = start(way)
    outcome = "interpreted" if way == NO else "compiled"
    assert f"compiled_modules status={outcome}\n" in node.log.read_text()
    made = node.ask("POST", "rules", {"rawsql": LONG, "actions": [NOTHING]})
    assert made["code"] == 0 and made["data"]["rawsql"] == LONG
    name = node.ask("POST", "data/export")["data"]["filename"]
    exported = node.ask("GET", f"data/file/{name}")
    other = start(way)
    assert other.ask("POST", "data/import", exported)["code"] == 0
    # The applications of the file have replaced the other's own: ask with what is open there now.
    other._headers = node._headers
    assert [rule["rawsql"] for rule in other.ask("GET", "rules")["data"]] == [LONG]


# --- the first moments ------------------------------------------------------------------------------------------------


def handled(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for it."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    [caught] = re.findall(r"^SigCgt:\t(\w+)$", status, re.M)
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.fixture
def just_begun(taipan: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command with its handlers in place, and the node not even imported."""
    if not Path("/proc/self/status").exists():
        pytest.skip("there is no /proc")
    config = tmp_path / "taipan.toml"
    off = "[management]\nenabled = false\n[dashboard]\nenabled = false\n"
    config.write_text(f'[node]\ndata_dir = "{tmp_path}/data"\n{off}{LISTENER}')
    with subprocess.Popen(
        [taipan, "--config", config], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            until = time.monotonic() + 20
            while not handled(process.pid, signal.SIGTERM) or not handled(process.pid, signal.SIGHUP):
                assert process.poll() is None and time.monotonic() < until
            assert "uvloop" not in Path(f"/proc/{process.pid}/maps").read_text()
            yield process
        finally:
            process.kill()


LISTENER = '[[listeners]]\nname = "one"\ntype = "tcp"\nbind = "127.0.0.1:0"\n'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_stop_in_the_first_moments_is_an_orderly_end(
    just_begun: subprocess.Popen[str], number: signal.Signals, tmp_path: Path
) -> None:
    just_begun.send_signal(number)
    said, log = just_begun.communicate(timeout=20)
    assert just_begun.returncode == 0, log
    assert f"stopping signal={number.name}" in log and "Traceback" not in log and said == ""
    assert not (tmp_path / "data").exists()


def test_two_signals_to_stop_in_the_first_moments_end_it_at_once(just_begun: subprocess.Popen[str]) -> None:
    just_begun.send_signal(signal.SIGTERM)
    while handled(just_begun.pid, signal.SIGTERM):
        pass
    just_begun.send_signal(signal.SIGTERM)
    assert just_begun.wait(20) == -signal.SIGTERM


def test_sighup_in_the_first_moments_reloads_when_the_node_is_ready(just_begun: subprocess.Popen[str]) -> None:
    just_begun.send_signal(signal.SIGHUP)
    assert just_begun.stdout is not None and just_begun.stderr is not None
    assert just_begun.stdout.readline().startswith("taipan ready")
    while "reloaded" not in (line := just_begun.stderr.readline()):
        assert line, "it ended"
    just_begun.terminate()
    assert just_begun.wait(20) == 0


def test_what_is_not_a_node_ends_by_the_signal(taipan: Path) -> None:
    with subprocess.Popen(
        [taipan, "hash-password"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not handled(process.pid, signal.SIGTERM):
            assert process.poll() is None
        process.terminate()
        assert process.wait(20) == -signal.SIGTERM
