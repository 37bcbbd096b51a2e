"""Who has compiled modules built, and what becomes of it where they cannot be; nothing is compiled here."""

import ast
import configparser
import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

import build_compiled
from taipan.broker.compiled import MANIFEST, Compiled

pytestmark = pytest.mark.usefixtures("stale")
MISSING = build_compiled.missing


@pytest.fixture
def stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled, and the machine could."""
    monkeypatch.setattr(build_compiled, "TARGET", tmp_path / "build" / "compiled")
    monkeypatch.setattr(build_compiled, "missing", lambda: None)


def called_with(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Callable[[], int]:
    monkeypatch.setattr("sys.argv", ["build_compiled.py", *arguments])
    return build_compiled.main


def fails(error: BaseException) -> Callable[[], None]:
    def compile_all() -> None:
        raise error

    return compile_all


def test_no_class_that_is_compiled_has_keywords() -> None:
    """mypyc leaves out what stands behind the bases: an ``array_like`` Struct would be written as another one."""
    found = [
        f"{file}: {node.name}"
        for file in build_compiled.sources()
        for node in ast.walk(ast.parse((build_compiled.ROOT / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.keywords
    ]
    assert found == []


def test_ctrl_c_ends_it_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(build_compiled, "compile_all", fails(KeyboardInterrupt()))
    monkeypatch.setattr("sys.argv", ["build_compiled.py", "--try"])
    assert build_compiled.run() == 130
    assert capsys.readouterr().err.splitlines()[-1].startswith("Compiling was interrupted")


def test_without_a_compiler_run_goes_on_with_one_line_and_compile_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_compiled, "missing", lambda: "there is no C compiler (cc)")
    monkeypatch.setattr(build_compiled, "compile_all", fails(AssertionError("it was tried")))
    assert called_with(monkeypatch, "--try")() == 0
    assert capsys.readouterr().err == "Taipan runs interpreted: there is no C compiler (cc)\n"
    with pytest.raises(SystemExit, match="there is no C compiler"):
        called_with(monkeypatch)()


def beside(monkeypatch: pytest.MonkeyPatch, error: BaseException | None = None) -> list[int]:
    """``--beside`` in a process of its own would get a lower priority: what it asked for, and what it watched."""
    asked: list[int] = []
    monkeypatch.setattr(build_compiled.os, "nice", asked.append)
    monkeypatch.setattr(build_compiled, "end_with", asked.append)
    monkeypatch.setattr(build_compiled, "compile_all", fails(error) if error is not None else lambda: None)
    assert called_with(monkeypatch, "--beside", "4711")() == 0
    return asked


def test_beside_a_node_it_compiles_at_low_priority_and_says_which_start_is_the_fast_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert beside(monkeypatch) == [4711, 19]
    before, after = capsys.readouterr().err.splitlines()
    assert before.startswith("Compiling the hot path (once; a minute or two; the node runs interpreted meanwhile")
    assert after == "The next start is the fast one"
    beside(monkeypatch, RuntimeError("gcc: killed"))
    assert capsys.readouterr().err.splitlines()[-1] == "Taipan runs interpreted: gcc: killed"
    monkeypatch.setattr(build_compiled, "missing", lambda: "there is no C compiler (cc)")
    beside(monkeypatch, AssertionError("it was tried"))
    assert capsys.readouterr().err == "Taipan runs interpreted: there is no C compiler (cc)\n"


def test_beside_a_node_it_ends_with_it() -> None:
    node = subprocess.Popen(["sleep", "60"])
    code = f"import build_compiled, time; build_compiled.end_with({node.pid}); print(1, flush=True); time.sleep(60)"
    compiling = subprocess.Popen([sys.executable, "-c", code], cwd=build_compiled.ROOT, stdout=subprocess.PIPE)
    try:
        assert compiling.stdout is not None and compiling.stdout.readline() == b"1\n"
        assert compiling.poll() is None
        node.kill()
        node.wait()
        assert compiling.wait(30) == 1
    finally:
        for process in (node, compiling):
            process.kill()
            process.communicate()


def test_who_only_asks_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """``make wheel`` asks."""
    monkeypatch.setattr(build_compiled, "compile_all", fails(AssertionError("it was tried")))
    assert called_with(monkeypatch, "--check")() == 0
    monkeypatch.setattr(build_compiled, "missing", lambda: "there is no C compiler (cc)")
    with pytest.raises(SystemExit) as told:
        called_with(monkeypatch, "--check")()
    assert told.value.code == "Nothing can be compiled: there is no C compiler (cc). COMPILED=no goes without"


@pytest.mark.parametrize(
    "compiler, header, said",
    [
        ("gcc", True, None),
        ("nowhere", True, "there is no C compiler (nowhere) (as root: apt-get install -y gcc libc6-dev)"),
        ("gcc", False, "there is no Python.h (as root: apt-get install -y python3-dev)"),
        (
            "nowhere",
            False,
            "there is no C compiler (nowhere) and no Python.h (as root: apt-get install -y gcc libc6-dev python3-dev)",
        ),
    ],
)
def test_all_that_is_missing_is_named_at_once(
    compiler: str, header: bool, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ["gcc"] + ["Python.h"] * header:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", f"{compiler} -pthread")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert MISSING() == said


@pytest.mark.parametrize(
    "error, said",
    [
        (SystemExit(1), "compiling failed"),
        (RuntimeError("gcc: killed"), "gcc: killed"),
        (OSError("the disk is full"), "the disk is full"),
    ],
)
def test_where_it_does_not_compile_run_goes_on_and_compile_fails(
    error: BaseException, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_compiled, "compile_all", fails(error))
    assert called_with(monkeypatch, "--try")() == 0
    before, after = capsys.readouterr().err.splitlines()
    assert "COMPILED=no" in before and after == f"Taipan runs interpreted: {said}"
    with pytest.raises(type(error)):
        called_with(monkeypatch)()


def test_what_is_fresh_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    def compile_all() -> None:
        built.append(1)
        manifest = {
            "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
            "modules": [file.removesuffix(".py").replace("/", ".") for file in build_compiled.sources()],
            "sources": Compiled.digests(build_compiled.ROOT),
            "sizes": {},
        }
        build_compiled.TARGET.mkdir(parents=True, exist_ok=True)
        (build_compiled.TARGET / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")

    monkeypatch.setattr(build_compiled, "compile_all", compile_all)
    for arguments in ((), (), ("--try",)):
        assert called_with(monkeypatch, *arguments)() == 0
    assert built == [1]
    monkeypatch.setattr(build_compiled, "MODULES", build_compiled.MODULES[1:])  # another list is another build
    assert called_with(monkeypatch)() == 0 and built == [1, 1]


def test_what_the_c_compiler_is_to_spend_less_on_is_compiled_and_found_by_its_c_file() -> None:
    namegen = pytest.importorskip("mypyc.namegen")
    files = {
        name: f"build/mypyc/__native_{namegen.exported_name(name.removesuffix('.py').replace('/', '.'))}.c"
        for name in build_compiled.sources()
    }
    found = [name for name, file in files.items() if build_compiled.is_seldom(file)]
    assert sorted(found) == sorted(f"taipan/broker/{name}.py" for name in build_compiled.SELDOM)
    assert not build_compiled.is_seldom("build/mypyc/taipan/broker/access/acl.c")  # what only loads a module


def test_what_mypy_is_not_to_read_is_only_what_nothing_compiled_takes_types_from(tmp_path: Path) -> None:
    settings = configparser.ConfigParser()
    settings.read(build_compiled.configure_mypy(tmp_path / "mypyc"))
    (section,) = [name for name in settings.sections() if name != "mypy"]
    assert settings[section]["follow_imports"] == "skip"
    skipped = {name.removesuffix(".*") for name in section.removeprefix("mypy-").split(",")}
    imported = {
        (node.module, alias.name)
        for file in build_compiled.sources()
        for node in ast.walk(ast.parse((build_compiled.ROOT / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0
        for alias in node.names
        if node.module.partition(".")[0] in skipped and not node.module.startswith("taipan.broker")
    }
    # A function that is called as one of Python, compiled or not.
    assert imported == {("websockets.speedups", "apply_mask"), ("websockets.utils", "apply_mask")}


def test_all_that_is_to_be_compiled_is_there() -> None:
    missing = [name for name in build_compiled.sources() if not (build_compiled.ROOT / name).is_file()]
    assert missing == []
