"""taipan-ctl over HTTP: the same words as over the socket, and one line for each thing that can be wrong."""

import json
from pathlib import Path

import pytest

from taipan.management.ctl import remote
from taipan.management.ctl.main import CommandLineError
from taipan.management.ctl.remote import place_of, read_profiles
from tests.support.api import APP_ID, SECRET, managed_node
from tests.support.certificates import Certificates
from tests.support.ctl import ctl, run

APP = f"{APP_ID}:{SECRET}"


def private(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.asyncio
async def test_what_the_socket_says_to_the_letter() -> None:
    async with managed_node() as node:
        await node.leave_session("away", "t/#")
        for words, as_json in (
            (("status",), False),
            (("clients", "list"), False),
            (("subscriptions", "list"), True),
            (("clients", "show", "nobody"), False),
            (("clients", "show", "nobody"), True),
            (("clients", "kcik", "x"), False),
            (("clients", "kcik", "x"), True),
            (("help",), False),
        ):
            option = ["--json"] if as_json else []
            there = await run("--url", node.management.url, *option, *words, TAIPAN_CTL_APP=APP)
            assert there == await ctl(node, *words, as_json=as_json), words
        there = await run("--url", node.management.url, "users", "add", "ann", "secret", TAIPAN_CTL_APP=APP)
        assert there.status == 0 and (await ctl(node, "users", "list")).lines == ['User(login = "ann")']


@pytest.mark.asyncio
async def test_what_reads_a_file_of_the_machine_is_refused() -> None:
    async with managed_node() as node:
        said = await run("--url", node.management.url, "data", "import", "/etc/passwd", TAIPAN_CTL_APP=APP)
        assert said.status == 1 and "own machine only" in said.out and len(said.lines) == 1


@pytest.mark.asyncio
async def test_where_the_secret_comes_from(tmp_path: Path) -> None:
    async with managed_node() as node:
        url = node.management.url
        right = await run("--url", url, "--app", APP, "status")
        assert right.status == 0
        file = private(tmp_path / "app", APP + "\nmore\n")
        assert await run("--url", url, "--app-file", file, "status", TAIPAN_CTL_APP="x:y") == right
        assert await run("status", TAIPAN_CTL_URL=url + "/", TAIPAN_CTL_APP=APP) == right
        directory = tmp_path / "taipan"
        directory.mkdir()
        text = (
            f'[profiles.office]\nurl = "{url}"\napp = "{APP}"\n[profiles.other]\nurl = "{url}"\napp_file = "{file}"\n'
        )
        private(directory / "ctl.toml", text)
        for name in ("office", "other"):
            assert await run("--profile", name, "status", XDG_CONFIG_HOME=str(tmp_path)) == right
        assert await run("status", XDG_CONFIG_HOME=str(tmp_path), TAIPAN_CTL_PROFILE="office") == right
        listed = await run("profiles", XDG_CONFIG_HOME=str(tmp_path))
        assert SECRET not in listed.out and listed.lines == [
            f"Profile(office, url={url}, app_id={APP_ID}, app_file=-, cafile=-)",
            f"Profile(other, url={url}, app_id=-, app_file={file}, cafile=-)",
        ]
        rows = json.loads((await run("profiles", "--json", XDG_CONFIG_HOME=str(tmp_path))).out)
        assert [row["name"] for row in rows] == ["office", "other"] and SECRET not in str(rows)


@pytest.mark.asyncio
async def test_wrong_credentials_and_a_node_without_the_endpoint() -> None:
    async with managed_node() as node:
        url = node.management.url
        said = await run("--url", url, "--app", f"{APP_ID}:guess", "status")
        assert (said.status, said.out) == (1, "") and "wrong AppID or AppSecret" in said.err and "guess" not in said.err
        told = json.loads((await run("--url", url, "--app", "a:b", "--json", "status")).err)
        assert told["code"] == 103
        said = await run("--url", url + "/elsewhere", "--app", APP, "status")
        assert (said.status, said.out) == (3, "") and "older than this taipan-ctl" in said.err
        assert len(said.err.splitlines()) == 1
    async with managed_node({"error_status": "emqx"}) as node:
        said = await run("--url", node.management.url + "/api/v4/x", "--app", APP, "status")
        assert said.status == 3 and "older than this taipan-ctl" in said.err


@pytest.mark.asyncio
async def test_a_viewer_of_the_dashboard_is_refused() -> None:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        await node.management.operations.dashboard_users.add("eve", "pass-word-1", "", "viewer")
        await node.management.operations.dashboard_users.add("root", "pass-word-1", "", "administrator")
        url = node.management.dashboard_url
        said = await run("--url", url, "--app", "eve:pass-word-1", "status")
        assert (said.status, said.out) == (1, "") and "eve has the role viewer" in said.err
        assert (await run("--url", url, "--app", "root:pass-word-1", "status")).status == 0


@pytest.mark.asyncio
async def test_tls(tmp_path: Path) -> None:
    authority = Certificates(tmp_path)
    certfile, keyfile = authority.issue("localhost")
    async with managed_node({"tls": {"certfile": certfile, "keyfile": keyfile}}) as node:
        url = node.management.url.replace("127.0.0.1", "localhost")
        said = await run("--url", url, "--cafile", authority.ca, "status", TAIPAN_CTL_APP=APP)
        assert (said.status, said.err) == (0, "")
        said = await run("--url", url, "status", TAIPAN_CTL_APP=APP)
        assert said.status == 3 and "is not trusted" in said.err and "--cafile" in said.err
        said = await run("--url", url.replace("https", "http"), "status", TAIPAN_CTL_APP=APP)
        assert said.status == 3 and len(said.err.splitlines()) == 1
        said = await run("--url", url, "--cafile", str(tmp_path / "none.pem"), "status", TAIPAN_CTL_APP=APP)
        assert said.status == 2 and "none.pem" in said.err


@pytest.mark.asyncio
async def test_no_way_there() -> None:
    async with managed_node() as node:
        url = node.management.url
    for where in (url, "http://no-such-host.invalid:1"):
        said = await run("--url", where, "status", TAIPAN_CTL_APP=APP)
        assert said.status == 3 and said.out == "" and len(said.err.splitlines()) == 1 and where in said.err
        said = await run("--url", where, "--json", "status", TAIPAN_CTL_APP=APP)
        assert json.loads(said.err)["code"] == 101


@pytest.mark.parametrize(
    "options, why",
    [
        ({"--url": "http://h", "--profile": "x"}, "not with"),
        ({"--url": "http://h", "--app": "a:b", "--app-file": "f"}, "not with"),
        ({"--url": "http://h"}, "--app-file: is missing"),
        ({"--url": "http://h", "--app": "onlyid"}, "--app-file: is missing"),
        ({"--url": "http://a:b@h", "--app": "a:b"}, "contains a name or a secret"),
        ({"--url": "ftp://h", "--app": "a:b"}, "expected https"),
        ({"--url": "http://h:x", "--app": "a:b"}, "Port"),
        ({"--app": "a:b"}, "--url: is missing"),
        ({"--profile": "none"}, "profile none: not found"),
        ({"--url": "http://h", "--app-file": "/nowhere"}, "No such file"),
    ],
)
def test_command_lines_that_say_too_little_or_too_much(tmp_path: Path, options: dict[str, str], why: str) -> None:
    with pytest.raises(CommandLineError, match=why):
        place_of(options, {"XDG_CONFIG_HOME": str(tmp_path)})


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = private(tmp_path / "app", APP, 0o640)
    with pytest.raises(CommandLineError, match="0640"):
        place_of({"--url": "http://h", "--app-file": file}, {})
    (tmp_path / "taipan").mkdir()
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert read_profiles(environ) == {}
    file = private(tmp_path / "taipan" / "ctl.toml", '[profiles.a]\nurl = "http://h"\n', 0o604)
    with pytest.raises(CommandLineError, match="chmod 600"):
        read_profiles(environ)


@pytest.mark.parametrize(
    "text, why",
    [
        ("[profiles", "ctl.toml"),
        ("url = 1", "url"),
        ("profiles = 1", "expected tables"),
        ("[profiles]\na = 1", "profiles.a: expected a table"),
        ('[profiles.a]\nurl = "http://h"\nsecret = "x"', "unknown key"),
        ('[profiles.a]\napp = "a:b"', "url: is missing"),
        ("[profiles.a]\nurl = 1", "expected a string"),
        ('[profiles.a]\nurl = "http://h"\napp = "a:b"\napp_file = "f"', "not both"),
    ],
)
def test_a_profiles_file_with_a_mistake(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "taipan").mkdir()
    private(tmp_path / "taipan" / "ctl.toml", text)
    with pytest.raises(CommandLineError, match=why):
        read_profiles({"XDG_CONFIG_HOME": str(tmp_path)})


def test_options_win_over_the_environment_and_that_over_nothing(tmp_path: Path) -> None:
    environ = {remote.URL: "http://env:1", remote.APP: "e:e", remote.CAFILE: "/env.pem"}
    place = place_of({}, environ)
    assert (place.url.netloc, place.app, place.cafile) == ("env:1", "e:e", "/env.pem")
    place = place_of({"--url": "https://opt:2", "--app": "o:o", "--cafile": "/opt.pem"}, environ)
    assert (place.url.netloc, place.app, place.cafile) == ("opt:2", "o:o", "/opt.pem")
    assert "o:o" not in place.name


@pytest.mark.asyncio
async def test_a_socket_and_a_url_at_once() -> None:
    said = await run("--data-dir", "d", "--url", "http://h", "status")
    assert said.status == 2 and "not both" in said.err
    said = await run("--json", "--wrong", "status")
    assert said.status == 2 and json.loads(said.err)["code"] == 108
