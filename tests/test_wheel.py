"""The wheel of ``make wheel`` in an empty environment: compiled, and what the tutorial prints runs from there."""

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from taipan.broker.compiled import BUILT, COMPILED, NO, VARIABLE, Compiled

ROOT = Path(__file__).parents[1]
ASK = "from taipan.broker import compiled; import taipan.broker.mqtt.decoder as d; print(compiled.outcome, d.__file__)"


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    told = subprocess.run(command, cwd=cwd, env=environ | env, capture_output=True, text=True, timeout=1500)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def test_who_compiles_a_wheel_has_the_types_of_what_the_sources_import() -> None:
    ask = "import setuptools.build_meta as build; print(*build.get_requires_for_build_wheel(), sep='\\n')"
    compiled = run(sys.executable, "-c", ask, cwd=ROOT, TAIPAN_COMPILE="yes").splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {*project["dependencies"]} <= {*compiled}
    assert any(each.startswith("mypy") for each in compiled)
    assert not any(each.startswith("mypy") for each in run(sys.executable, "-c", ask, cwd=ROOT).splitlines())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    Compiled(BUILT).unusable() is not None, reason="nothing is compiled here; make test-compiled has it"
)
def test_a_wheel_runs_compiled_what_the_tutorial_prints(tmp_path: Path) -> None:
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    wheel_dir, home = tmp_path / "dist", tmp_path / "environment"
    build = ("wheel", "--no-deps", "--wheel-dir", wheel_dir, ROOT)
    run(sys.executable, *pip, *build, cwd=ROOT, TAIPAN_COMPILE="yes")
    [wheel] = wheel_dir.glob("taipan_mqtt-*.whl")
    assert "none-any" not in wheel.name
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, *pip, "install", f"{wheel}[all]", cwd=tmp_path)
    outcome, decoder = run(python, "-c", ASK, cwd=tmp_path).split()
    assert outcome == COMPILED and decoder.startswith(str(home)) and not decoder.endswith(".py")
    outcome, decoder = run(python, "-c", ASK, cwd=tmp_path, **{VARIABLE: NO}).split()
    assert outcome == "interpreted" and decoder.endswith("decoder.py")
    test = ROOT / "tests" / "interop" / "test_tutorial.py"
    tutorial = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", test)
    assert " passed" in run(sys.executable, *tutorial, cwd=ROOT, TAIPAN_BIN=str(home / "bin"))
