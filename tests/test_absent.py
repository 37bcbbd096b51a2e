"""What is said of tests that were skipped, and what stands in for curl."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.support import curl
from tests.support.absent import PACKAGES, absent, reason, what_to_install
from tests.support.http_sink import HttpSink, status


def test_one_line_says_which_command_brings_the_rest() -> None:
    reasons = ["Skipped: node is not installed", "fish is not installed", "Skipped: needs settings of its own"]
    assert what_to_install(reasons) == "2 that were skipped run after, as root: apt-get install -y fish nodejs npm"
    one = what_to_install(["the dashboard is driven in Chromium: chromium is not installed"])
    assert one == "One that was skipped runs after, as root: apt-get install -y chromium"
    assert what_to_install(["Skipped: paho-mqtt is not installed"]) is None and what_to_install([]) is None
    for what in PACKAGES:
        with pytest.MonkeyPatch.context() as patched:
            patched.delenv("CI", raising=False)
            with pytest.raises(pytest.skip.Exception) as skipped:
                absent(what)
        assert PACKAGES[what].split()[0] in str(what_to_install([str(skipped.value)]))


def test_what_tests_skip_for_is_known() -> None:
    """So that the line names it."""
    assert what_to_install([reason("systemd-analyze")]) is not None
    assert what_to_install([reason("openssl/ssl.h")]) is not None


@pytest.mark.asyncio
async def test_what_stands_in_for_curl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert curl.path(tmp_path) == f"{tmp_path}:/usr/bin:/bin"

    async def ask(*words: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            str(tmp_path / "curl"), "-sS", *words, cwd=tmp_path, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await process.communicate()
        return process.returncode, said.decode()

    (tmp_path / "body").write_text("of a file")
    sink = await HttpSink().start()
    assert await ask("-u", "a:b", sink.url + "/x") == (0, "ok")
    assert await ask("-X", "POST", sink.url + "/y", "-d", "{}") == (0, "ok")
    assert await ask(sink.url + "/z", "-d", "@body", "-o", "answer") == (0, "")
    assert (tmp_path / "answer").read_text() == "ok"
    sink.answer = status(404)
    assert await ask("-X", "DELETE", sink.url + "/gone") == (0, "no")
    assert [(each[0], each[1], each[3]) for each in sink.requests] == [
        ("GET", "/x", b""), ("POST", "/y", b"{}"), ("POST", "/z", b"of a file"), ("DELETE", "/gone", b""),
    ]  # fmt: skip
    assert sink.requests[0][2]["authorization"] == "Basic YTpi"
    await sink.stop()
    code, said = await ask(sink.url)
    assert code == 7 and said.startswith("curl: (7) ")
