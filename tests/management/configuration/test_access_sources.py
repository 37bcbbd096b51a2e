"""A configuration names sources of access: built-in ones, one that a package has, and what cannot be used."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import taipan
from taipan.management.configuration.config import load
from taipan.management.configuration.config import read as read_all
from taipan.management.configuration.config_document import ConfigError
from taipan.management.configuration.setting_notes import note_of
from tests.support.access_package import importable, install_keypad
from tests.support.api import managed_node
from tests.support.peer import Address, Peer

KEYPAD = '[access.keypad]\ncodes = {ann = "1234"}\n'


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_keypad(tmp_path_factory.mktemp("keypad"))


@pytest.fixture
def keypad(installed: Path) -> Iterator[Path]:
    with importable(installed):
        yield installed


def read(tmp_path: Path, text: str, *overrides: str) -> Any:
    path = tmp_path / "t.toml"
    path.write_text(text, "utf-8")
    return load(str(path), overrides, {}).broker.access


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    return "\n".join(refused.value.lines).replace(str(tmp_path) + "/", "")


def distribution(folder: Path, name: str, value: str) -> None:
    made = folder / f"{name}-1.0.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (made / "entry_points.txt").write_text(f"[taipan.access_sources]\nkeypad = {value}\n", "utf-8")


def test_the_table_of_a_package(tmp_path: Path, keypad: Path) -> None:
    access = read(tmp_path, KEYPAD)
    assert access.keypad.codes == {"ann": "1234"} and access.http is None
    assert access.authenticators[-1] == access.authorizers[-1] == "keypad"
    access = read(tmp_path, f'[access]\nauthenticators = ["keypad", "stored"]\n{KEYPAD}')
    assert access.authenticators == ("keypad", "stored")
    assert read(tmp_path, KEYPAD) == read(tmp_path, KEYPAD)


def test_overrides(tmp_path: Path, keypad: Path) -> None:
    assert read(tmp_path, "", "access.keypad.codes.ann=1234").keypad.codes == {"ann": "1234"}
    listed = read(tmp_path, KEYPAD, 'access.authenticators=["keypad"]')
    assert listed.authenticators == ("keypad",)


def test_what_is_wrong_in_its_table(tmp_path: Path, keypad: Path) -> None:
    assert refusal(tmp_path, "[access.keypad]") == 't.toml:1: access.keypad: needs the key "codes"'
    assert refusal(tmp_path, KEYPAD + 'cods = "x"').startswith("t.toml:3: access.keypad.cods: unknown key")
    words = '"keypad" needs the table [access.keypad]'
    for key in ("authenticators", "authorizers"):
        assert refusal(tmp_path, f'[access]\n{key} = ["keypad"]') == f"t.toml:2: access.{key}: {words}"
    both = refusal(tmp_path, '[access]\nauthorizers = ["keypad"]\nauthenticators = ["keypad"]')
    assert both == f"t.toml:2: access.authorizers: {words}\nt.toml:3: access.authenticators: {words}"


def test_a_source_that_nobody_has(tmp_path: Path) -> None:
    assert "access.keypad: unknown key" in refusal(tmp_path, KEYPAD)
    known = '"configuration", "stored", "jwt", "http", "postgresql", "mysql", "redis", "ldap", "exhook"'
    words = f't.toml:2: access.authorizers.0: expected one of {known}, got "keypad"'
    assert refusal(tmp_path, '[access]\nauthorizers = ["keypad"]') == words


def test_two_packages_with_one_name(tmp_path: Path, keypad: Path) -> None:
    distribution(tmp_path / "other", "other-keypad", "other:KEYPAD")
    with importable(tmp_path / "other"):
        words = "several packages have an entry point of this name: other-keypad and taipan-keypad; remove all but one"
        assert refusal(tmp_path, KEYPAD) == f"t.toml:1: access.keypad: {words}"


@pytest.mark.parametrize(
    "code, words",
    [
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("KEYPAD = 1", "broken_keypad:KEYPAD is not an AccessSource"),
        (
            "from taipan.broker.access.declaration import AccessSource\nKEYPAD = AccessSource(name='door', create='')",
            "broken_keypad:KEYPAD has another name: door",
        ),
    ],
)
def test_a_package_that_cannot_be_used(tmp_path: Path, code: str, words: str) -> None:
    distribution(tmp_path / "other", "broken", "broken_keypad:KEYPAD")
    (tmp_path / "other" / "broken_keypad.py").write_text(code, "utf-8")
    try:
        with importable(tmp_path / "other"):
            told = refusal(tmp_path, KEYPAD)
    finally:
        sys.modules.pop("broken_keypad", None)
    assert told.startswith("t.toml:1: access.keypad: entry point keypad of taipan.access_sources, package broken")
    assert words in told and "\n" not in told


def test_a_library_that_is_missing(tmp_path: Path) -> None:
    distribution(tmp_path / "other", "lazy", "lazy_keypad:KEYPAD")
    (tmp_path / "other" / "lazy_keypad.py").write_text(
        "import msgspec\nfrom taipan.broker.access.declaration import AccessSource\n"
        "class Settings(msgspec.Struct, frozen=True):\n    codes: dict[str, str]\n"
        "KEYPAD = AccessSource(name='keypad', settings=Settings, create='no_such_driver:Source', extra='lazy[driver]')",
        "utf-8",
    )
    try:
        with importable(tmp_path / "other"):
            told = refusal(tmp_path, KEYPAD)
    finally:
        sys.modules.pop("lazy_keypad", None)
    missing = "needs a package that is not installed (No module named 'no_such_driver'): pip install 'lazy[driver]'"
    assert told == f"t.toml:1: access.keypad: {missing}"


@pytest.mark.parametrize(
    "code, words",
    [
        (
            "raise OSError('libdoor.so: cannot open shared object file')",
            "OSError: libdoor.so: cannot open shared object file",
        ),
        ("", "AttributeError: module 'keypad_driver' has no attribute 'Source'"),
    ],
)
@pytest.mark.parametrize("key", ["create", "check"])
def test_a_module_that_cannot_be_imported(tmp_path: Path, key: str, code: str, words: str) -> None:
    distribution(tmp_path / "other", "lazy", "lazy_keypad:KEYPAD")
    texts = {"create": "builtins:print", key: "keypad_driver:Source"}
    (tmp_path / "other" / "keypad_driver.py").write_text(code, "utf-8")
    (tmp_path / "other" / "lazy_keypad.py").write_text(
        "import msgspec\nfrom taipan.broker.access.declaration import AccessSource\n"
        "class Settings(msgspec.Struct, frozen=True):\n    codes: dict[str, str]\n"
        f"KEYPAD = AccessSource(name='keypad', settings=Settings, **{texts})",
        "utf-8",
    )
    try:
        with importable(tmp_path / "other"):
            told = refusal(tmp_path, KEYPAD)
    finally:
        sys.modules.pop("lazy_keypad", None)
        sys.modules.pop("keypad_driver", None)
    assert told == f"t.toml:1: access.keypad: cannot import keypad_driver:Source: {words}"


@pytest.mark.parametrize(
    "code, words",
    [
        ("raise KeyError('codes')", "KeyError: 'codes'"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two\\nlines"),
        ("return 1", "TypeError: 'int' object is not iterable"),
        ("yield 'wrong'", "TypeError: expected Fault, got str"),
    ],
)
@pytest.mark.parametrize("key", ["check=broken", "rules={'codes': broken}"])
def test_a_check_that_fails(tmp_path: Path, key: str, code: str, words: str) -> None:
    distribution(tmp_path / "other", "broken-keypad", "broken_keypad:KEYPAD")
    (tmp_path / "other" / "broken_keypad.py").write_text(
        "import msgspec\nfrom taipan.broker.access.declaration import AccessSource\n"
        "class Settings(msgspec.Struct, frozen=True):\n    codes: dict[str, str]\n"
        f"def broken(value):\n    {code}\n"
        f"KEYPAD = AccessSource(name='keypad', settings=Settings, create=print, {key})",
        "utf-8",
    )
    try:
        with importable(tmp_path / "other"):
            told = refusal(tmp_path, KEYPAD)
    finally:
        sys.modules.pop("broken_keypad", None)
    place = "t.toml:1: access.keypad" if key.startswith("check") else "t.toml:2: access.keypad.codes"
    assert told == f"{place}: a check of the package broken-keypad failed, report it there: {words}"


def test_the_notes_of_its_sample(tmp_path: Path) -> None:
    """``sample.toml`` in the package explains its settings."""
    distribution(tmp_path / "other", "sampled", "sampled_keypad:KEYPAD")
    package = tmp_path / "other" / "sampled_keypad"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import msgspec\nfrom taipan.broker.access.declaration import AccessSource\n"
        "class Settings(msgspec.Struct, frozen=True):\n    codes: dict[str, str]\n"
        "KEYPAD = AccessSource(name='keypad', settings=Settings, create=print)\n",
        "utf-8",
    )
    (package / "sample.toml").write_text("# A keypad.\n#[access.keypad]\n# By username.\n#codes = {}\n", "utf-8")
    try:
        with importable(tmp_path / "other"):
            read(tmp_path, KEYPAD)
            assert note_of("access.keypad", "codes") == "By username."
            assert note_of("access", "keypad") == "A keypad."
    finally:
        sys.modules.pop("sampled_keypad", None)


SHOWN = """
[access.keypad]
codes = {ann = "1234-opensesame"}
doors = {shut = false}
"""


@pytest.mark.asyncio
async def test_its_secrets_are_masked(tmp_path: Path, keypad: Path) -> None:
    """All values, but those of the keys that the package declares to be shown, and that all remote sources have."""
    file = tmp_path / "t.toml"
    file.write_text(SHOWN, "utf-8")
    loaded = read_all(str(file), (), {})
    async with managed_node() as node:
        node.management.operations.configuration.use(loaded)
        reply = await node.api.get("/configuration", key="access.")
        told = {each["key"]: each for each in reply.data}
        assert "opensesame" not in json.dumps(reply.data)
        values = {key: told[f"access.keypad.{key}"]["value"] for key in ("codes", "doors", "on_failure", "timeout")}
        assert values == {"codes": "******", "doors": {"shut": False}, "on_failure": "deny", "timeout": 5.0}
        assert told["access.keypad.timeout"]["description"].startswith("Seconds within which an answer must arrive")
        assert told["access.keypad.codes"]["place"] == f"{file}:3"
        assert told["access.guesses"]["value"] == 10 and told["access.http"]["value"] is None


@pytest.mark.asyncio
async def test_a_node_asks_it(keypad: Path) -> None:
    """From a program; the sources of ``add_authenticator`` still come first."""
    access = {"keypad": {"codes": {"ann": "1234"}, "doors": {"shut": False}}}
    listeners = [{"type": "tcp", "bind": "127.0.0.1:0", "allow_anonymous": False}]
    async with taipan.Node(durability="memory", listeners=listeners, access=access) as node:
        server = node._server
        assert list(server.access.sources) == ["configuration", "stored", "keypad"]
        node.add_authenticator(lambda client, password: True if client.username == "eve" else None)
        for username, password, code in (("ann", b"1234", 0), ("ann", b"0", 0x86), ("eve", b"", 0)):
            peer = await Peer(Address(node.host, node.port)).open()
            await peer.connect(f"c-{username}", username=username, password=password, expect=code)
            await peer.close()


AWAY = (1, "", "taipan: access.keypad: no_connection: the keypad is unplugged\n")


@pytest.mark.slow
def test_the_command_checks_it(tmp_path: Path, installed: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(KEYPAD, "utf-8")
    command = [sys.executable, "-m", "taipan.management.node", "check", str(path)]
    with_it = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(installed)})
    assert (with_it.returncode, with_it.stdout) == (0, f"{path}: ok\n")
    connect = [*command, "--connect"]
    for environment, told in (({}, (0, f"{path}: ok; access.keypad: connected\n", "")), ({"KEYPAD_AWAY": "1"}, AWAY)):
        ended = subprocess.run(
            connect, capture_output=True, text=True, env={"PYTHONPATH": str(installed), **environment}
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == told
    without = subprocess.run(command, capture_output=True, text=True, env={})
    assert without.returncode == 1 and "access.keypad: unknown key" in without.stderr
