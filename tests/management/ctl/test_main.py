"""The command itself: where it finds the node, what it prints, how it ends."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from taipan.management.ctl.main import CommandLineError, find_data_dir, read_command_line
from taipan.management.data_dir import DataDir
from tests.support.api import managed_node
from tests.support.ctl import ROOT, run
from tests.support.node import NodeProcess


def test_options_come_first_and_json_anywhere() -> None:
    assert read_command_line(["--data-dir", "d", "clients", "list", "--json"]) == (
        {"--data-dir": "d"},
        True,
        ["clients", "list"],
    )
    assert read_command_line(["--config=c", "data", "import", "/f", "--env", "{}"]) == (
        {"--config": "c"},
        False,
        ["data", "import", "/f", "--env", "{}"],
    )
    assert read_command_line(["clients", "show", "--", "--json"]) == ({}, False, ["clients", "show", "--json"])
    assert read_command_line(["-h"])[2] == ["help"]


@pytest.mark.parametrize("argv", [["--data-dir"], ["--wrong", "x"], ["clients", "show", "\udcff"]])
def test_a_command_line_that_cannot_be_used(argv: list[str]) -> None:
    with pytest.raises(CommandLineError):
        read_command_line(argv)


def test_where_the_node_is(tmp_path: Path) -> None:
    file = tmp_path / "taipan.toml"
    file.write_text('[node]\ndata_dir = "/of/the/file"\n')
    environ = {"TAIPAN__NODE__DATA_DIR": "/of/the/environment"}
    options = {"--config": str(file)}
    assert find_data_dir({**options, "--data-dir": "/given"}, environ) == "/given"
    assert find_data_dir(options, environ) == "/of/the/environment"
    assert find_data_dir(options, {}) == "/of/the/file"
    assert find_data_dir({}, {}) == str(Path.cwd() / "data")
    file.write_text("[log]\n")
    assert find_data_dir(options, {}) == str(Path.cwd() / "data")


def test_the_node_of_a_file_is_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "top" / "config" / "taipan.toml"
    for directory in (file.parent, tmp_path / "top" / "data", tmp_path / "top" / "config" / "data", tmp_path / "data"):
        directory.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    options = {"--config": str(file)}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "lock").write_text("1\n/another/node.toml\n")
    (file.parent / "data" / "lock").write_text("2\n")
    assert find_data_dir(options, {}) == str(tmp_path / "data")
    held = DataDir(str(tmp_path / "top" / "data"), str(file))
    assert find_data_dir(options, {}) == str(tmp_path / "top" / "data")
    held.close()


@pytest.mark.asyncio
async def test_the_installed_command_finds_its_node_and_says_its_version(tmp_path: Path) -> None:
    scripts = Path(sys.executable).parent
    config = tmp_path / "etc" / "taipan.toml"
    config.parent.mkdir()
    off = "[management]\nenabled = false\n[dashboard]\nenabled = false\n"
    config.write_text(f'{off}[[listeners]]\nname = "a"\ntype = "tcp"\nbind = "127.0.0.1:0"\n')
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TAIPAN__")}
    node = await asyncio.create_subprocess_exec(
        scripts / "taipan", "--config", "etc/taipan.toml",
        cwd=tmp_path, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert node.stdout is not None
        assert (await asyncio.wait_for(node.stdout.readline(), 30)).startswith(b"taipan ready")
        ctl = await asyncio.create_subprocess_exec(
            scripts / "taipan-ctl", "--config", config, "status", cwd="/", env=environ, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await ctl.communicate()
        assert (ctl.returncode, said.startswith(b"Node 'taipan@127.0.0.1'")) == (0, True)
    finally:
        node.terminate()
        await node.communicate()
    version = subprocess.run([scripts / "taipan-ctl", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"taipan-ctl \d+\.\d+\.\d+\S*\n", version.stdout)


@pytest.mark.parametrize("text", ["[node", "node = 1", "[node]\ndata_dir = 1", '[node]\ndata_dir = ""'])
def test_a_file_that_does_not_say_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "taipan.toml"
    file.write_text(text)
    with pytest.raises(CommandLineError):
        find_data_dir({"--config": str(file)}, {})
    with pytest.raises(CommandLineError, match="No such file"):
        find_data_dir({"--config": str(tmp_path / "none")}, {})


@pytest.mark.asyncio
async def test_the_real_command_against_two_nodes(tmp_path: Path) -> None:
    first, second = str(tmp_path / "one"), str(tmp_path / "two")
    async with (
        managed_node(node={"name": "one@here", "data_dir": first}) as one,
        managed_node(node={"name": "two@here", "data_dir": second}),
    ):
        for directory, name in ((first, "one@here"), (second, "two@here")):
            said = await run("--data-dir", directory, "status")
            assert said == (0, f"Node '{name}' {one.server.version} is started\n", "")
            assert await run("status", TAIPAN__NODE__DATA_DIR=directory) == said
        assert (await run("--data-dir", first, "nothing")).status == 2
        refused = await run("--data-dir", first, "clients", "show", "nobody")
        assert refused == (1, "error: client nobody: not found\n", "")
        answer = await run("--data-dir", first, "--json", "clients", "list")
        assert answer == (0, "[]\n", "")


@pytest.mark.asyncio
async def test_a_node_that_does_not_run(tmp_path: Path) -> None:
    said = await run("--data-dir", str(tmp_path), "status")
    assert said.status == 3 and said.out == ""
    assert str(tmp_path / "ctl.sock") in said.err and "is the node running" in said.err
    assert len(said.err.splitlines()) == 1
    said = await run("--data-dir", str(tmp_path), "help")
    assert said.status == 0 and "log primary-level [<Level>]" in said.out
    said = await run("--data-dir", str(tmp_path), "help", "clients")
    assert said.status == 0 and {line.split()[0] for line in said.out.splitlines()} == {"clients"}
    said = await run("--data-dir", str(tmp_path), "help", "client")
    assert said.status == 1 and said.err == 'error: command client: unknown; did you mean "clients"?\n'
    assert (await run("--data-dir", str(tmp_path))).status == 2
    assert (await run("--timeout", "never", "status")).status == 2


@pytest.mark.asyncio
async def test_a_real_node_leaves_no_socket_and_takes_over_a_stale_one(tmp_path: Path) -> None:
    config = tmp_path / "taipan.toml"
    directory = tmp_path / ("d" * 120)  # longer than the address of a Unix socket may be
    config.write_text(
        f'[node]\ndata_dir = "{directory}"\n[[listeners]]\nname = "default"\ntype = "tcp"\nbind = "127.0.0.1:0"\n'
        "[management]\nenabled = false\n"
    )
    node = await NodeProcess(config).start()
    try:
        # The HTTP server is off; the socket is there all the same.
        assert (await run("--config", str(config), "status")).status == 0
        assert (directory / "ctl.sock").stat().st_mode & 0o777 == 0o600
    finally:
        node.process.kill()
        await node.process.communicate()
    said = await run("--config", str(config), "status")
    assert said.status == 3 and "not running" in said.err
    node = await NodeProcess(config).start()
    try:
        assert (await run("--config", str(config), "--json", "broker")).status == 0
    finally:
        assert await node.stop() == 0
    assert not (directory / "ctl.sock").exists()


@pytest.mark.asyncio
async def test_a_reader_that_goes_away_is_no_error() -> None:
    async with managed_node() as node:
        command = f"{sys.executable} -m taipan.management.ctl.main --data-dir {node.settings.node.data_dir} help"
        process = await asyncio.create_subprocess_shell(
            f"{command} | true; exit $?", stderr=asyncio.subprocess.PIPE, cwd=ROOT
        )
        _, errors = await process.communicate()
        assert errors == b""
    assert await without_a_node("help") == await without_a_node("help", "rules") == b""


async def without_a_node(*words: str) -> bytes:
    """What a command says that is read by nothing, where no node answers."""
    command = f"{sys.executable} -m taipan.management.ctl.main --data-dir /nowhere {' '.join(words)}"
    process = await asyncio.create_subprocess_shell(f"{command} | true", stderr=asyncio.subprocess.PIPE, cwd=ROOT)
    return (await process.communicate())[1]


def test_what_it_imports_at_the_start_is_little() -> None:
    """Nothing of ours but the client, nothing of others, and no large modules of the standard library."""
    code = "import sys; import taipan.management.ctl.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    names = done.stdout.split()
    loaded = {name.partition(".")[0] for name in names}
    assert loaded.isdisjoint({"asyncio", "msgspec", "aiohttp", "argparse", "tomllib", "logging"})
    client = "taipan.management.ctl.main"
    assert all(client.startswith(name) for name in names if name.startswith("taipan"))
