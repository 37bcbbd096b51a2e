"""What is wrong with [dashboard.openid] is told with file and line; ``taipan check --connect`` asks the provider."""

import json
from pathlib import Path
from typing import Any

import pytest

from taipan.management.configuration.config import load
from taipan.management.configuration.config_document import ConfigError
from tests.support.node import free_port
from tests.support.openid_provider import CLIENT_ID, SECRET, openid_provider

from ..commands.test_cluster_try import check

GOOD = {
    "issuer": "https://login.example.org/realms/plant",
    "client_id": CLIENT_ID,
    "client_secret": SECRET,
    "dashboard_url": "https://mqtt.example.org:18083",
    "administrators": ["mqtt-admins"],
}


def table(**keys: Any) -> str:
    """``None`` leaves out the key."""
    given = {key: value for key, value in {**GOOD, **keys}.items() if value is not None}
    return "[dashboard.openid]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items())


def read(tmp_path: Path, text: str) -> str:
    path = tmp_path / "t.toml"
    path.write_text(text, "utf-8")
    try:
        load(str(path), (), {})
    except ConfigError as error:
        return str(error).replace(str(path), "t.toml")
    return ""


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"issuer": "http://127.0.0.1:8080/realms/plant"},
        {"issuer": "http://localhost:8080"},
        {"issuer": "http://[::1]:8080"},
        {"dashboard_url": "http://10.0.0.1:18083/"},
        {"dashboard_url": "https://mqtt.example.org/dashboard/"},
        {"client_secret": None},
        {"administrators": None, "default_role": "viewer"},
        {"administrators": None, "viewers": ["all"]},
    ],
)
def test_accepted(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert read(tmp_path, table(**keys)) == ""


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"issuer": None}, 't.toml:1: dashboard.openid: needs the key "issuer"'),
        ({"client_id": None}, 't.toml:1: dashboard.openid: needs the key "client_id"'),
        ({"dashboard_url": None}, 't.toml:1: dashboard.openid: needs the key "dashboard_url"'),
        ({"issuer": ""}, "t.toml:2: dashboard.openid.issuer: expected https://host"),
        ({"issuer": "http://login.example.org"}, "dashboard.openid.issuer: expected https://host...; http is only"),
        ({"issuer": "https://u:p@login.example.org"}, "issuer: expected a URL without credentials"),
        ({"issuer": "https://login.example.org/#x"}, "issuer: expected a URL without credentials and fragment"),
        ({"issuer": "https://login.example.org/?x"}, "issuer: expected a URL without a query"),
        ({"client_id": ""}, "t.toml:3: dashboard.openid.client_id: expected the ID"),
        ({"dashboard_url": ""}, "t.toml:5: dashboard.openid.dashboard_url: expected the URL of the dashboard"),
        ({"dashboard_url": "mqtt.example.org"}, "dashboard_url: expected http://host"),
        ({"dashboard_url": "https://mqtt.example.org/other"}, "dashboard_url: expected https://host:port, with"),
        ({"dashboard_url": "https://mqtt.example.org/#/x"}, "dashboard_url: expected https://host:port, with"),
        ({"dashboard_url": "https://mqtt.example.org/?x=y"}, "dashboard_url: expected https://host:port, with"),
        ({"scopes": ["profile"]}, 't.toml:7: dashboard.openid.scopes: expected "openid" among them'),
        ({"scopes": ["openid", "a b"]}, "t.toml:7: dashboard.openid.scopes.1: expected a scope"),
        ({"username_claim": ""}, "dashboard.openid.username_claim: expected the name of a claim"),
        ({"roles_claim": ""}, "dashboard.openid.roles_claim: expected the name of a claim"),
        ({"viewers": ["all", ""]}, "t.toml:7: dashboard.openid.viewers.1: expected the name of a group"),
        ({"operators": [""]}, "t.toml:7: dashboard.openid.operators.0: expected the name of a group"),
        ({"default_role": "administrator"}, "dashboard.openid.default_role: expected one of"),
        ({"administrators": None}, "t.toml:1: dashboard.openid: needs administrators, operators, viewers or def"),
        ({"viewers": ["mqtt-admins"]}, "dashboard.openid.viewers: 'mqtt-admins' is already one of administrators"),
        ({"client_secret_file": "/x"}, "t.toml:7: dashboard.openid.client_secret_file: client_secret is already"),
        ({"client_secret": None, "client_secret_file": "/nowhere"}, "client_secret_file: /nowhere: No such file"),
        ({"client_secret": None, "client_secret_file": "/dev/null"}, "client_secret_file: /dev/null: not a regular"),
        ({"cafile": "/nowhere"}, "t.toml:7: dashboard.openid.cafile: /nowhere: No such file"),
        ({"cafile": __file__}, "dashboard.openid.cafile: "),
        ({"timeout": 0}, "t.toml:7: dashboard.openid.timeout: expected"),
        ({"leeway": -1}, "t.toml:7: dashboard.openid.leeway: expected"),
        ({"client_secrets": "x"}, "t.toml:7: dashboard.openid.client_secrets: unknown key"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, keys: dict[str, Any], error: str) -> None:
    found = read(tmp_path, table(**keys))
    assert error in found, found
    assert SECRET not in found


def test_an_empty_secret_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("\n")
    assert "expected 1 to 4096 characters" in read(tmp_path, table(client_secret=None, client_secret_file=str(file)))
    file.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in read(tmp_path, table(client_secret=None, client_secret_file=str(file)))


@pytest.mark.asyncio
async def test_check_connect(tmp_path: Path) -> None:
    async with openid_provider() as provider:
        assert await check(tmp_path, table(issuer=provider.url)) == (0, f"t.toml: ok; OpenID Connect: {provider.url}")
        assert provider.asked == ["/.well-known/openid-configuration", "/jwks"]
        provider.metadata = {"issuer": "https://other.example.org"}
        status, said = await check(tmp_path, table(issuer=provider.url))
        assert status == 1
        wanted = f"discovery: the issuer is 'https://other.example.org', not '{provider.url}'"
        assert said == f"taipan: dashboard.openid.issuer: {wanted}"
    other = f"http://127.0.0.1:{free_port()}"
    status, said = await check(tmp_path, table(issuer=other))
    assert status == 1
    assert said.startswith("taipan: dashboard.openid.issuer: /.well-known/openid-configuration: "), said
    assert "Connect call failed" in said
