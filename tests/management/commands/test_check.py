"""``taipan check``: what is wrong with a configuration and the files that it names, one line each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taipan.management.node import main
from tests.support.certificates import Certificates
from tests.support.fixtures import certificates as certificates


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('[node]\nname = "a@b"\n')
    bad.write_text('[node]\n\nnam = "a@b"\n')
    assert main(["check", str(good)]) == 0
    assert main(["check", str(bad)]) == 1
    assert main(["--set", "node.name=x", "check", str(good)]) == 1
    output = capsys.readouterr()
    assert output.out == f"{good}: ok\n"
    assert output.err.splitlines() == [
        f'taipan: {bad}:3: node.nam: unknown key; did you mean "name"?',
        'taipan: --set node.name: node.name: expected <name>@<host>, got "x"',
    ]


def test_check_takes_keys_and_reads_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tls.toml"
    file.write_text(
        '[[listeners]]\nname = "a"\ntype = "ssl"\nbind = "127.0.0.1:0"\n'
        f'[listeners.tls]\ncertfile = "{tmp_path}/absent.pem"\nkeyfile = "absent.key"\n'
    )
    assert main(["check", str(file)]) == 1
    assert main(["--set", "node.name=a@b", "check", str(file), "--set", "node.nam=x"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"taipan: listeners.0.tls.certfile: cannot read '{tmp_path}/absent.pem': No such file or directory",
        'taipan: --set node.nam: node.nam: unknown key; did you mean "name"?',
    ]


def test_check_reads_the_certificates_of_the_management_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tls.toml"
    file.write_text(f'[management.tls]\ncertfile = "{tmp_path}/absent.pem"\nkeyfile = "absent.key"\n')
    assert main(["check", str(file)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"taipan: management.tls.certfile: cannot read '{tmp_path}/absent.pem': No such file or directory",
    ]
    assert main(["check", str(file), "--set", "management.enabled=false"]) == 0


@pytest.mark.parametrize("text", [None, "", "-----BEGIN nothing"])
@pytest.mark.parametrize("key", ["nkey_file", "credentials_file", "tls_ca", "tls_cert", "tls_key"])
def test_check_reads_the_files_of_a_cluster(
    tmp_path: Path, certificates: Certificates, capsys: pytest.CaptureFixture[str], key: str, text: str | None
) -> None:
    certfile, keyfile = certificates.issue("node")
    pair = {"tls_cert": certfile, "tls_key": keyfile}
    given = {"tls_ca": certificates.ca, **(pair if key in pair else {})}
    file = tmp_path / "cluster.toml"

    def check() -> int:
        table = "".join(f'{each} = "{path}"\n' for each, path in given.items())
        file.write_text(f'[cluster]\nservers = ["tls://h"]\n{table}')
        return main(["check", str(file)])

    assert check() == 0
    if text is not None:
        (tmp_path / "wrong").write_text(text)
    given[key] = str(tmp_path / "wrong")
    assert check() == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"taipan: cluster.{key}: ") and given[key] in said


def test_check_takes_its_file_from_the_input_or_config(tmp_path: Path) -> None:
    """``taipan --print-defaults | taipan check -``; a reader that goes away early gets no traceback."""
    taipan = [sys.executable, "-m", "taipan.management.node"]
    environ = {**os.environ, "TAIPAN__NODE__DATA_DIR": str(tmp_path)}

    def run(*words: str, given: str = "") -> tuple[int, str, str]:
        done = subprocess.run([*taipan, *words], input=given, capture_output=True, text=True, env=environ, timeout=60)
        return done.returncode, done.stdout, done.stderr

    file = tmp_path / "a.toml"
    file.write_text('[log]\nlevel = "info"\n')
    assert run("check", "-", given=file.read_text()) == (0, "-: ok\n", "")
    assert run("-c", str(file), "check") == (0, f"{file}: ok\n", "")
    assert run("check", "-", given="[log]\nlevel = 1\n")[2].startswith("taipan: -:2: log.level: ")
    assert run("-c", str(file), "check", str(file))[0] == run("check")[0] == 2
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*taipan, "--print-defaults"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
