"""/configuration: every setting in force, where it comes from, and what it means; no secret in it."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.management.configuration.config import TABLES, load
from taipan.management.configuration.setting_notes import note_of
from taipan.management.configuration.setting_types import struct_in
from taipan.management.operations.configuration import shown
from tests.support.api import APP_ID, SECRET, ApiClient, assert_refused, managed_node
from tests.support.configuration_file import ONE_LISTENER
from tests.support.fake_cluster import fake_nodes
from tests.support.node import NodeProcess, free_port

pytestmark = pytest.mark.asyncio

FILE = (
    ONE_LISTENER
    + """

[access]
rules = [{{ allow = true, topics = ["a/#"] }}]

[access.http]
auth_url = "http://name:opensesame@127.0.0.1:1/auth?token=opensesame"
headers = {{ Authorization = "Bearer opensesame" }}

[access.jwt]
secret = "opensesame-opensesame-opensesame-1"

[[access.users]]
username = "ann"
password_hash = "scrypt$16384$8$1$8K2pL43R02BbuMfgbFHfLA==$OLRjNnlt9cdplksTjy1Ou1iU8yAqxmm/Yoh2Z2kwNUk="

[[management.apps]]
id = "{app}"
secret = "{secret}"
"""
)


def written(tmp_path: Path, port: int) -> Path:
    file = tmp_path / "taipan.toml"
    file.write_text(FILE.format(data=tmp_path / "data", port=port, app=APP_ID, secret=SECRET), "utf-8")
    return file


async def settings_of(api: ApiClient, **query: Any) -> dict[str, Any]:
    return {each["key"]: each for each in (await api.get("/configuration", **query)).data}


@pytest.mark.slow
async def test_each_value_says_where_it_was_written(tmp_path: Path) -> None:
    file = written(tmp_path, free_port())
    env = {"TAIPAN__ACCESS__GUESSES": "20", "TAIPAN__ZONES__EXTERNAL__MAX_INFLIGHT": "7"}
    node = await NodeProcess(file, "--set", "retained.max_messages=5", env=env).start()
    found = re.search(r"management=(\S+)", node.ready)
    assert found is not None
    api = ApiClient(found[1])
    try:
        told = await settings_of(api)
        for key, value, origin, place, default, reloadable in (
            ("node.name", "n1@host", "file", f"{file}:2", "taipan@127.0.0.1", False),
            ("listeners.0.bind", told["listeners.0.bind"]["value"], "file", f"{file}:8", None, False),
            ("listeners.0.max_qos", 1, "file", f"{file}:9", 2, True),
            ("listeners.0.backlog", 4096, "default", "", 4096, True),
            ("access.rules.0.topics", ["a/#"], "file", f"{file}:12", [], True),
            ("access.guesses", 20, "environment", "TAIPAN__ACCESS__GUESSES", 10, True),
            ("zones.external.max_inflight", 7, "environment", "TAIPAN__ZONES__EXTERNAL__MAX_INFLIGHT", 32, True),
            ("retained.max_messages", 5, "command line", "--set retained.max_messages", 1_000_000, True),
            ("access.jwt.secret", "******", "file", f"{file}:19", "", True),
            ("management.max_row_limit", 10_000, "default", "", 10_000, False),
            ("management.host_names", [], "default", "", [], True),
            ("cluster", None, "default", "", None, False),
            ("log.level", "info", "default", "", "info", True),
        ):
            each = told[key]
            got = tuple(each[name] for name in ("value", "origin", "place", "default", "reloadable"))
            assert got == (value, origin, place, default, reloadable), key
        assert told["access.rules.0.allow"]["origin"] == "file"
        assert "listeners.0.max_inflight" not in told  # its zone has that
        assert "opensesame" not in json.dumps(told) and SECRET not in json.dumps(told)
        assert "OLRjNnlt9" not in json.dumps(told)
        # After a reload these are the new ones.
        text = file.read_text("utf-8").replace("[access.jwt]\n", '[access.jwt]\nacl_claim = "rights"\n')
        file.write_text(text.replace("-opensesame-1", "-opensesame-2") + '\n[log]\nlevel = "warning"\n', "utf-8")
        node.process.send_signal(signal.SIGHUP)
        while (level := (await settings_of(api, key="log.level"))["log.level"])["value"] != "warning":
            pass
        assert level["origin"] == "file"
        (row,) = (await api.get("/audit", door="reload")).data
        values = {
            each["setting"]: (old["value"], each["value"])
            for old, each in zip(row["before"], row["after"], strict=True)
        }
        assert values == {"log.level": ("info", "warning"), "access.jwt.acl_claim": ("acl", "rights")}
    finally:
        await api.close()
        await node.stop()


async def test_every_setting_is_explained() -> None:
    async with managed_node() as node:
        told = await settings_of(node.api)
    assert {key for key, each in told.items() if not each["description"]} == set()
    # Also those that nothing has set here.
    for name, table in TABLES.items():
        for field in msgspec.structs.fields(table):
            inner = struct_in(field.type)
            for member in msgspec.structs.fields(inner) if inner is not None else ():
                assert note_of(f"{name}.{field.name}", member.name), f"{name}.{field.name}.{member.name}"
            assert inner is not None or note_of(name, field.name), f"{name}.{field.name}"


async def test_pages_beginnings_and_nodes() -> None:
    async with fake_nodes(2) as nodes:
        told = await settings_of(nodes.api, key="retained.")
        assert set(told) >= {"retained.max_messages", "retained.expiry_interval"}
        assert all(key.startswith("retained.") for key in told)
        far = await settings_of(nodes.api, key="node.name", node=nodes[1].name)
        assert far["node.name"]["value"] == nodes[1].name
        reply = await nodes.api.get("/configuration", _limit=3)
        assert len(reply.data) == 3 and reply.meta["hasnext"] and reply.meta["count"] > 100
        assert_refused(await nodes.api.get("/configuration", node="else@where"), 404, 102, "else@where")


async def test_what_is_named_like_a_secret_is_masked_unless_it_is_known_to_be_none() -> None:
    masked = {"password", "token", "key_password", "secret", "password_hash", "scram", "api_key"}
    assert {key for key in masked if shown(key, "x") == "******"} == masked
    assert shown("password", "") == ""
    assert shown("server_names", {"a": {"certfile": "c", "key_password": "x"}}) == {
        "a": {"certfile": "c", "key_password": "******"}
    }
    assert shown("auth_url", "http://u:p@h/") == "http://u:******@h/"


async def test_an_inline_table_and_a_list_set_as_a_whole_keep_their_place(tmp_path: Path) -> None:
    from taipan.management.configuration.config import read

    file = tmp_path / "t.toml"
    file.write_text("[access]\nusers = [\n  { username = 'a' },\n]\n", "utf-8")
    origins = read(str(file), ['access.rules=[{allow=true,topics=["x"]}]'], {}).origins
    assert origins.of(("access", "users", 0, "username")) == ("file", f"{file}:3")
    assert origins.of(("access", "rules", 0, "topics")) == ("command line", "--set access.rules")
    assert origins.of(("access", "no_match")) == ("default", "")
    assert load(environ={}) == read(environ={}).settings
