"""``make dashboard``: when it builds, with which Node, what it says where it cannot; how large the first view is."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import build_dashboard
from build_dashboard import STAMP, TARGET, CannotBuild

MANIFEST = TARGET / ".vite" / "manifest.json"
FIRST_VIEW = 122_880
"""Bytes, compressed."""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dashboard of one file, and a Vite that only copies it."""
    sources = tmp_path / "dashboard"
    (sources / "src").mkdir(parents=True)
    (sources / "src" / "main.tsx").write_text("1", encoding="ascii")
    for name in ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts"):
        (sources / name).write_text(name, encoding="ascii")
    target = tmp_path / "management" / "static"
    target.parent.mkdir()
    build = tmp_path / "build"
    for name, value in (("SOURCES", sources), ("TARGET", target), ("BUILD", build), ("LOG", build / "log")):
        monkeypatch.setattr(build_dashboard, name, value)

    def vite(command: list[str], *_: object, **__: str) -> None:
        if "build" in command:
            out = Path(command[command.index("--outDir") + 1])
            out.mkdir()
            (out / "index.html").write_text((sources / "src" / "main.tsx").read_text("ascii"), encoding="ascii")
        else:
            (sources / "node_modules").mkdir(exist_ok=True)
            (sources / "node_modules" / ".package-lock.json").touch()

    monkeypatch.setattr(build_dashboard, "run", vite)
    monkeypatch.setattr(build_dashboard, "node_and_npm", lambda *_, **__: (Path("/node/bin/node"), ["npm"]))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_what_is_fresh_is_not_built_again(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build_dashboard.main([]) == 0 and len(said(capsys)) == 2
    assert build_dashboard.main([]) == 0 and said(capsys) == []
    page = checkout / "management" / "static" / "index.html"
    assert page.read_text() == "1"
    (checkout / "dashboard" / "src" / "main.tsx").write_text("2", encoding="ascii")
    assert build_dashboard.main([]) == 0 and len(said(capsys)) == 2
    assert page.read_text() == "2"
    page.unlink()
    assert build_dashboard.main([]) == 0 and page.exists()


def test_where_it_cannot_be_built_one_line_says_why_and_what_was_there_stays(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build_dashboard.main([])
    (checkout / "dashboard" / "package.json").write_text("{}", encoding="ascii")
    said(capsys)

    def refuse() -> tuple[Path, list[str]]:
        raise CannotBuild("there is no Node")

    monkeypatch.setattr(build_dashboard, "node_and_npm", refuse)
    assert build_dashboard.main(["--try"]) == 0
    assert said(capsys)[1:] == ["The node runs without its dashboard: there is no Node"]
    assert build_dashboard.main([]) == 1
    assert said(capsys)[1:] == ["there is no Node"]
    assert (checkout / "management" / "static" / "index.html").read_text() == "1"


def test_packages_count_when_all_of_them_are_installed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """npm leaves a node_modules, and its own lock file there, also where it fails afterwards."""
    asked: list[list[str]] = []
    environments: list[dict[str, str]] = []

    def npm(command: list[str], otherwise: str, directory: Path, **more: str) -> None:
        asked.append(command)
        environments.append(more)
        (directory / "node_modules").mkdir(exist_ok=True)
        (directory / "node_modules" / ".package-lock.json").touch()
        if len(asked) in (1, 4):
            raise CannotBuild(otherwise)

    monkeypatch.setattr(build_dashboard, "run", npm)
    directory = checkout / "dashboard"
    with pytest.raises(CannotBuild):
        build_dashboard.install_packages(directory)
    assert not build_dashboard.packages_are_there(True, directory)
    build_dashboard.install_packages(directory)
    build_dashboard.install_packages(directory)
    assert len(asked) == 2 and asked[1][:2] == ["npm", "ci"]
    # Those that only tests want are more than what the page wants.
    assert build_dashboard.packages_are_there(False, directory)
    build_dashboard.install(Path("/node/bin/node"), ["npm"], False, directory)
    assert build_dashboard.packages_are_there(False, directory)
    assert not build_dashboard.packages_are_there(True, directory)
    # Another lock file, and a failure: what was there before is over.
    (directory / "package-lock.json").write_text("other", encoding="ascii")
    assert not build_dashboard.packages_are_there(False, directory)
    with pytest.raises(CannotBuild):
        build_dashboard.install_packages(directory)
    (directory / "package-lock.json").write_text("package-lock.json", encoding="ascii")
    assert not build_dashboard.packages_are_there(False, directory)
    assert all(each["PATH"].startswith("/node/bin") for each in environments)


def test_npm_trusts_whom_the_machine_trusts(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Node of PyPI has authorities of its own."""
    trusted: list[str | None] = []
    monkeypatch.setattr(build_dashboard, "run", lambda *_, **more: trusted.append(more.get("NODE_EXTRA_CA_CERTS")))
    (checkout / "dashboard" / "node_modules").mkdir()
    (checkout / "authorities").touch()
    for variable, file in ((None, "authorities"), (None, "none"), ("/mine.pem", "authorities")):
        if variable is None:
            monkeypatch.delenv("NODE_EXTRA_CA_CERTS", raising=False)
        else:
            monkeypatch.setenv("NODE_EXTRA_CA_CERTS", variable)
        monkeypatch.setattr(build_dashboard, "AUTHORITIES", checkout / file)
        build_dashboard.install(Path("/node/bin/node"), ["npm"], True, checkout / "dashboard")
    assert trusted == [str(checkout / "authorities"), None, None]


def test_what_takes_too_long_is_ended_in_one_line(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(build_dashboard, "LOG", checkout / "log")
    monkeypatch.setattr(build_dashboard, "MOST", 0.1)
    with pytest.raises(CannotBuild, match=r"npm ci failed \(it took more than 0.1 seconds; more in "):
        build_dashboard.run(["sleep", "60"], "npm ci failed", checkout)


def test_packages_of_tests_that_cannot_be_had_are_told_in_one_line(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fetch: bool, runs_vite: bool) -> tuple[Path, list[str]]:
        raise CannotBuild("there is no Node")

    monkeypatch.setattr(build_dashboard, "node_and_npm", refuse)
    assert build_dashboard.main(["--try", "--packages", str(checkout / "dashboard")]) == 0
    assert said(capsys) == ["Some tests are left out: there is no Node"]


@pytest.mark.parametrize(
    "version, enough",
    [
        ("v18.20.4", False),
        ("v20.18.9", False),
        ("v20.19.2\n", True),
        ("v21.7.3", False),
        ("v22.11.0", False),
        ("v22.12.0", True),
        ("v24.1.0", True),
        ("", False),
    ],
)
def test_which_node_runs_vite(version: str, enough: bool) -> None:
    assert build_dashboard.is_new_enough(version) is enough


def chunks_of(entry: str, manifest: dict[str, dict[str, object]]) -> set[str]:
    """The files of a chunk and of all that it imports before it runs."""
    found: set[str] = set()
    waiting = [entry]
    while waiting:
        chunk = manifest[waiting.pop()]
        if chunk["file"] in found:
            continue
        styles, imports = chunk.get("css", []), chunk.get("imports", [])
        assert isinstance(styles, list) and isinstance(imports, list)
        found |= {str(chunk["file"]), *styles}
        waiting += imports
    return found


@pytest.fixture
def built() -> Callable[[str], set[str]]:
    if not (TARGET / STAMP).exists() or not MANIFEST.exists():
        pytest.skip("the dashboard is not built here: make dashboard")
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    return lambda entry: chunks_of(entry, manifest)


def test_the_first_view_is_small(built: Callable[[str], set[str]]) -> None:
    files = {"index.html", "theme.js", "icon.svg"} | built("index.html")
    files |= built("src/pages/overview.tsx") | built("src/components/plot.ts")
    small = {name: min((TARGET / name).stat().st_size, (TARGET / f"{name}.gz").stat().st_size) for name in files}
    assert sum(small.values()) <= FIRST_VIEW, small


def test_the_page_loads_nothing_from_elsewhere_and_has_nothing_inline(built: Callable[[str], set[str]]) -> None:
    page = (TARGET / "index.html").read_text(encoding="utf-8")
    assert built("index.html")
    assert re.findall(r"<script(?![^>]*\ssrc=)", page) == [] and "<style" not in page and " style=" not in page
    assert [found for found in re.findall(r'(?:src|href)="([^"]+)"', page) if not re.match(r"(\./|/$)", found)] == []
