"""The scripts of the package of Debian: shells read them, and the configuration that it brings is taken.

``packaging/debian/try`` tries a package from installation to purge, on a Debian of its own.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from taipan.management.configuration.config import load

ROOT = Path(__file__).parents[2]
DEBIAN = ROOT / "packaging" / "debian"
SCRIPTS = sorted(file for file in DEBIAN.iterdir() if file.read_text("utf-8").startswith("#!"))


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / "packaging" / "sbom"], ids=lambda file: file.name)
def test_its_shell_reads_it(script: Path) -> None:
    text = script.read_text("utf-8")
    shell = "bash" if "bash" in text.splitlines()[0] else "sh"
    subprocess.run([shell, "-n", str(script)], check=True)
    assert "set -e" in text


def test_the_configuration_keeps_its_data_where_the_service_may_write(tmp_path: Path) -> None:
    [edit] = re.findall(r"(?m)^sed '([^']+)' config/taipan.toml", (DEBIAN / "build").read_text("utf-8"))
    told = subprocess.run(["sed", edit, str(ROOT / "config" / "taipan.toml")], check=True, capture_output=True)
    file = tmp_path / "taipan.toml"
    file.write_bytes(told.stdout)
    assert load(str(file), environ={}).broker.node.data_dir == "/var/lib/taipan"
    # The package has the pages that it names.
    pages = re.findall(r"(\S*)docs/([a-z/-]+\.md)", told.stdout.decode())
    assert pages and {before.lstrip("(") for before, _ in pages} == {"/usr/share/doc/taipan-mqtt/"}
    assert all((ROOT / "docs" / page).is_file() and page.count("/") < 2 for _, page in pages)
    assert {page.partition("/")[0] for _, page in pages if "/" in page} <= {"api", "systems"}
    assert "for page in docs/*.md docs/api/*.md docs/systems/*.md;" in (DEBIAN / "build").read_text("utf-8")


@pytest.mark.parametrize(
    "version, of_debian",
    [("0.2.0", "0.2.0"), ("0.2.0rc1", "0.2.0~rc1"), ("0.2.0.dev0", "0.2.0~dev0"), ("1.0a2", "1.0~a2")],
)
def test_a_version_before_a_release_is_lower(version: str, of_debian: str) -> None:
    [edit] = re.findall(r"sed -E '([^']+)'", (DEBIAN / "build").read_text("utf-8"))
    assert subprocess.run(["sed", "-E", edit], input=version, text=True, capture_output=True).stdout == of_debian


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("action", ["remove", "purge"])
def test_what_removes_and_what_keeps(tmp_path: Path, action: str, keys: bool) -> None:
    """A removal keeps configuration and data, a purge what others have put beside the configuration, and /opt."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("mkdir", "rm", "rmdir"):  # and nothing else, so that nothing of this machine is changed
        found = shutil.which(name)
        assert found is not None
        (commands / name).symlink_to(found)
    data, etc, others = (tmp_path / name for name in ("var/lib/taipan", "etc/taipan", "opt/other"))
    for directory in (data / "exports", etc, others):
        directory.mkdir(parents=True)
    (data / "taipan.db").write_text("")
    if keys:
        (etc / "server.key").write_text("")
    subprocess.run(
        ["/bin/sh", str(DEBIAN / "postrm"), action],
        env={"PATH": str(commands), "DPKG_ROOT": str(tmp_path)},
        check=True,
        stderr=subprocess.DEVNULL,
    )
    assert data.exists() is (action == "remove")
    assert etc.exists() is (action == "remove" or keys) and (etc / "server.key").exists() is keys
    assert others.is_dir() and (tmp_path / "var" / "lib").is_dir()
    for script in ("postinst", "prerm"):
        assert "/var/lib/taipan" not in re.findall(r"rm -rf (.*)", (DEBIAN / script).read_text("utf-8"))


def test_opt_itself_stays(tmp_path: Path) -> None:
    """dpkg removes an empty directory that no other package has, and /opt is in none of Debian's."""
    commands = tmp_path / "bin"
    commands.mkdir()
    mkdir = shutil.which("mkdir")
    assert mkdir is not None
    (commands / "mkdir").symlink_to(mkdir)  # and nothing else, so that nothing of this machine is changed
    for _ in range(2):
        subprocess.run(
            ["/bin/sh", str(DEBIAN / "postrm"), "remove"],
            env={"PATH": str(commands), "DPKG_ROOT": str(tmp_path)},
            check=True,
            stderr=subprocess.DEVNULL,
        )
        assert (tmp_path / "opt").is_dir()
