"""Settings are changed in the file of a node: comments and secrets stay, the node reads it first, and it is audited."""

import asyncio
import errno
import json
import os
import re
import stat
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from taipan.management.operations.configuration_file import MAX_FILE
from tests.support.api import APP_ID, SECRET, ApiClient, Reply, assert_refused, managed_node
from tests.support.configuration_file import ONE_LISTENER, KeptFile
from tests.support.fake_cluster import fake_nodes
from tests.support.node import NodeProcess, free_port

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

FILE = "# The broker of the plant.\n"
FILE += ONE_LISTENER
FILE += """  # for the old sensors

[access.jwt]
secret = "opensesame-opensesame-opensesame-1"

[access.http]
auth_url = "http://name:opensesame@127.0.0.1:1/auth?token=opensesame"
headers = {{ Authorization = "Bearer opensesame", Accept = "text/plain" }}

[log]
level = "info" # password = "opensesame"

[[management.apps]]
id = "{app}"
secret = "{secret}"
"""
PATH = "/nodes/n1%40host/configuration"


class EditedNode:
    """A node process and its file."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "conf" / "taipan.toml"
        self.file.parent.mkdir()
        self.file.write_text(FILE.format(data=directory / "data", port=free_port(), app=APP_ID, secret=SECRET), "utf-8")
        self.process: NodeProcess | None = None
        self.api = ApiClient("")

    async def start(self) -> "EditedNode":
        env = {"TAIPAN__ACCESS__GUESSES": "20"}
        self.process = await NodeProcess(self.file, "--set", "retained.max_messages=5", env=env).start()
        found = re.search(r"management=(\S+)", self.process.ready)
        assert found is not None
        self.api = ApiClient(found[1])
        return self

    async def stop(self) -> None:
        await self.api.close()
        assert self.process is not None
        await self.process.stop()

    async def version(self) -> str:
        return str((await self.api.get(PATH + "/file")).data["version"])

    async def change(self, dry_run: bool = False, version: str | None = None, **values: Any) -> Reply:
        changes = [{"key": key.replace("__", "."), "value": value} for key, value in values.items()]
        body = {"changes": changes, "version": await self.version() if version is None else version, "dry_run": dry_run}
        return await self.api.put(PATH, body)

    async def value(self, key: str) -> Any:
        return next(each for each in (await self.api.get("/configuration", key=key)).data if each["key"] == key)


@pytest_asyncio.fixture
async def edited(tmp_path: Path) -> AsyncIterator[EditedNode]:
    node = await EditedNode(tmp_path).start()
    yield node
    await node.stop()


async def test_a_change_is_shown_first_then_written_and_in_effect(edited: EditedNode) -> None:
    before = edited.file.read_text("utf-8")
    os.chmod(edited.file, 0o640)
    found = (await edited.api.get(PATH + "/file")).data
    assert found["file"] == str(edited.file) and found["editable"] and not found["reason"]
    shown = (await edited.change(dry_run=True, log__level="warning", listeners__0__max_qos=0)).data
    assert edited.file.read_text("utf-8") == before
    # Viewers see it, and must not be able to try values of a secret against it.
    assert found["version"] != sha256(edited.file.read_bytes()).hexdigest()
    assert shown["version"] == found["version"]
    assert "-max_qos = 1  # for the old sensors\n+max_qos = 0  # for the old sensors" in shown["diff"]
    assert "opensesame" not in json.dumps(shown) and SECRET not in json.dumps(shown)
    assert {each["key"]: (each["before"], each["after"]) for each in shown["changed"]} == {
        "log.level": ("info", "warning"),
        "listeners.0.max_qos": (1, 0),
    }
    done = (await edited.change(version=shown["version"], log__level="warning", listeners__0__max_qos=0)).data
    after = edited.file.read_text("utf-8")
    assert after == before.replace('"info" #', '"warning" #').replace("max_qos = 1", "max_qos = 0")
    assert stat.S_IMODE(edited.file.stat().st_mode) == 0o640
    assert [each.name for each in edited.file.parent.iterdir()] == ["taipan.toml"]
    assert done["version"] == await edited.version() != shown["version"]
    level = await edited.value("log.level")
    assert (level["value"], level["origin"]) == ("warning", "file")
    # The same file is read at a start.
    await edited.stop()
    await edited.start()
    assert (await edited.value("listeners.0.max_qos"))["value"] == 0
    (row,) = (await edited.api.get("/audit", _like_what="configuration")).data
    assert (row["what"], row["who"]) == ("PUT /nodes/{node}/configuration", APP_ID)
    assert {each["setting"]: each["value"] for each in row["before"]} == {"log.level": "info", "listeners.0.max_qos": 1}
    assert {each["setting"]: each["value"] for each in row["after"]} == {
        "log.level": "warning",
        "listeners.0.max_qos": 0,
    }


async def test_null_deletes_a_key_and_its_default_applies(edited: EditedNode) -> None:
    assert (await edited.change(listeners__0__max_qos=None)).code == 0
    assert "max_qos" not in edited.file.read_text("utf-8")
    assert "listeners.0.max_qos" not in {
        each["key"] for each in (await edited.api.get("/configuration", key="listeners")).data
    }


async def test_secrets_stay_unless_they_are_replaced_and_are_never_shown(edited: EditedNode) -> None:
    headers = (await edited.value("access.http.headers"))["value"]
    assert headers == {"Authorization": "******", "Accept": "text/plain"}
    # A mask stands for the secret of the file.
    assert (await edited.change(access__http__headers={**headers, "Accept": "text/html"})).code == 0
    url = (await edited.value("access.http.auth_url"))["value"]
    assert "******" in url
    assert (await edited.change(access__http__auth_url=url, access__jwt__secret="******", log__level="debug")).code == 0
    text = edited.file.read_text("utf-8")
    assert 'Authorization = "Bearer opensesame"' in text and 'Accept = "text/html"' in text
    assert "name:opensesame@" in text and 'secret = "opensesame-opensesame-opensesame-1"' in text
    # One that nobody has.
    assert_refused(await edited.change(access__http__auth_url=url + "&password=******"), 400, 108, "give the secret")
    reply = await edited.change(access__jwt__secret="sesameopen-sesameopen-sesameopen-1")
    assert reply.code == 0 and "sesame" not in reply.text
    assert '+secret = "****** (new)"' in reply.data["diff"]
    assert 'secret = "sesameopen-' in edited.file.read_text("utf-8")
    rows = await edited.api.get("/audit")
    assert "sesame" not in rows.text and len(rows.data) == 3
    assert edited.process is not None and "sesame" not in edited.process.said


async def test_what_the_node_would_not_read_is_refused_and_nothing_changes(edited: EditedNode) -> None:
    before = edited.file.read_bytes()
    for status, words, values in (
        (400, "expected", {"log__level": "loud"}),
        (400, "expected", {"listeners__0__max_qos": 3}),
        (400, "", {"listeners__0__max_qos": {"a": [None]}}),
        (400, "", {"listeners__0__max_qos": [[]]}),
        (400, "", {"log__level": "\u0000\u001b\r\n"}),
        (400, "requires a restart", {"node__name": "n2@host"}),
        (400, "TAIPAN__ACCESS__GUESSES takes precedence", {"access__guesses": 3}),
        (400, "--set retained.max_messages takes precedence", {"retained__max_messages": 3}),
        (404, "no setting listeners.1.bind", {"listeners__1__bind": 3}),
        (404, "no setting log.levl", {"log__levl": "info"}),
    ):
        for dry_run in (True, False):
            reply = await edited.change(dry_run, **values)
            assert reply.status == status and words in reply.json["message"], (values, reply.text)
    # A file that the node cannot use, which only a reload notices.
    assert_refused(await edited.change(listeners__0__tls={"certfile": "/dev/null/x"}), 400, 108)
    assert_refused(await edited.change(version="", log__level="debug"), 400, 107, "version")
    assert_refused(await edited.api.put(PATH, {"changes": [], "version": "x"}), 400, 108, "changes")
    twice = {"changes": [{"key": "log.level"}, {"key": "log.level"}], "version": await edited.version()}
    assert_refused(await edited.api.put(PATH, twice), 400, 108, "two values")
    assert edited.file.read_bytes() == before
    assert (await edited.value("log.level"))["value"] == "info"
    assert (await edited.api.get("/audit")).data == []


async def test_a_file_that_has_changed_meanwhile_is_not_replaced(edited: EditedNode) -> None:
    version = await edited.version()
    text = edited.file.read_text("utf-8").replace("# The broker", "# A broker").replace("max_qos = 1", "max_qos = 2")
    edited.file.write_text(text, "utf-8")
    assert_refused(await edited.change(version=version, log__level="debug"), 400, 108, "changed in the meantime")
    assert edited.file.read_text("utf-8") == text
    # Seen again, the other change is named: it takes effect, too.
    shown = (await edited.change(dry_run=True, log__level="debug")).data
    assert {each["key"] for each in shown["changed"]} == {"log.level", "listeners.0.max_qos"}
    assert "max_qos" not in shown["diff"]
    assert (await edited.change(version=shown["version"], log__level="debug")).code == 0
    # A change of somebody else that requires a restart is not applied by accident.
    edited.file.write_text(edited.file.read_text("utf-8").replace("n1@host", "n2@host"), "utf-8")
    assert_refused(await edited.change(log__level="info"), 400, 108, "node.name has been changed in the file")


async def test_two_at_once_do_not_lose_a_change(edited: EditedNode) -> None:
    version = await edited.version()
    replies = await asyncio.gather(
        edited.change(version=version, log__level="debug"), edited.change(version=version, listeners__0__max_qos=2)
    )
    assert sorted(each.json["code"] for each in replies) == [0, 108]


async def test_a_link_stays_a_link_and_a_missing_file_is_one_line(edited: EditedNode) -> None:
    real = edited.file.with_name("real.toml")
    edited.file.rename(real)
    edited.file.symlink_to(real.name)
    assert (await edited.change(log__level="debug")).code == 0
    assert edited.file.is_symlink() and 'level = "debug"' in real.read_text("utf-8")
    real.unlink()
    found = (await edited.api.get(PATH + "/file")).data
    assert not found["editable"] and "No such file" in found["reason"]
    assert_refused(await edited.change(version="x", log__level="info"), 400, 108, "No such file")


async def test_a_node_without_a_file_and_nodes_that_are_not_there() -> None:
    async with managed_node() as node:
        name = (await node.api.get("/nodes")).data[0]["node"].replace("@", "%40")
        found = (await node.api.get(f"/nodes/{name}/configuration/file")).data
        assert not found["editable"] and "--config" in found["reason"]
        body = {"changes": [{"key": "log.level", "value": "info"}], "version": "x"}
        assert_refused(await node.api.put(f"/nodes/{name}/configuration", body), 400, 108, "--config")
    async with fake_nodes(2) as nodes:
        far = nodes[1].name.replace("@", "%40")
        assert (await nodes.api.get(f"/nodes/{far}/configuration/file")).data["node"] == nodes[1].name
        assert_refused(await nodes.api.put(f"/nodes/{far}/configuration", body), 400, 108, "--config")
        assert_refused(await nodes.api.put("/nodes/else%40where/configuration", body), 404, 102, "else@where")


async def test_a_failure_while_the_file_is_replaced_leaves_all_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptFile(tmp_path / "taipan.toml")
    async with managed_node() as node:
        operations = node.management.operations
        kept.use_in(operations)
        path = f"/nodes/{operations.calls.name.replace('@', '%40')}/configuration"
        body = {"changes": [{"key": "log.level", "value": "debug"}]}
        body["version"] = (await node.api.put(path, {**body, "dry_run": True})).data["version"]

        def busy(*_: object) -> None:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        for name, failing, words, applied in (
            ("replace", busy, "busy", ["debug", "info"]),
            ("fsync", full, "No space left", []),
            ("access", lambda *_: False, "not writable", []),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(f"taipan.management.operations.configuration_file.os.{name}", failing)
                reply = await node.api.put(path, body)
            assert_refused(reply, 400, 108, words)
            assert kept.applied == applied, name
            assert kept.path.read_text("utf-8") == '[log]\nlevel = "info"\n'
            assert [each.name for each in tmp_path.iterdir()] == ["taipan.toml"]
            kept.applied.clear()
        assert (await node.api.put(path, body)).code == 0 and kept.applied == ["debug"]


async def test_a_lacking_package_and_a_long_file_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptFile(tmp_path / "taipan.toml")
    async with managed_node() as node:
        operations = node.management.operations
        kept.use_in(operations)
        with monkeypatch.context() as patched:
            patched.setattr("importlib.util.find_spec", lambda name: None)
            assert "pip install" in operations.configuration_file.file_here().reason
        kept.path.write_bytes(b"#" * (MAX_FILE + 1))
        assert "larger than 1 MiB" in operations.configuration_file.file_here().reason
