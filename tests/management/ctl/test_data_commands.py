"""data."""

import json
import re
from pathlib import Path

import pytest

from taipan.broker.access.foreign_hashes import NO_BCRYPT
from taipan.broker.access.stored.users import CLIENT_ID, USERNAME
from tests.broker.access.test_foreign_hashes import BCRYPT
from tests.support.api import managed_node
from tests.support.ctl import ctl, ctl_json, done
from tests.support.no_package import without

pytestmark = pytest.mark.asyncio

EXPORTS = Path(__file__).parents[2] / "api" / "exports"
FAILED = "error: file {path}"


async def test_export() -> None:
    async with managed_node() as node:
        (line,) = await done(node, "data", "export")
        found = re.fullmatch(
            r"The emqx data has been successfully exported to (/.+/backup/broker-export-.+\.json)\.", line
        )
        assert found is not None and json.loads(Path(found[1]).read_bytes())["version"] == "4.4"
        assert set(await ctl_json(node, "data", "export")) == {"filename", "size", "created_at", "node"}


async def test_import() -> None:
    async with managed_node() as node:
        path = str(EXPORTS / "emqx-4.3.json")
        counts = await ctl_json(node, "data", "import", path, "--dry-run", "true")
        assert counts["auth_mnesia"] == 2 and node.server.stored_users.all() == []
        assert "auth_mnesia: 2" in await done(node, "data", "import", path, "--dry-run", "true")
        said = await done(node, "data", "import", path)
        assert said[0] == "The emqx data has been imported successfully."
        assert any(line.startswith("Left out: apps admin: its secret is EMQX's published default") for line in said)
        assert node.server.stored_users.get(USERNAME, "carol") is not None
        (line,) = await done(node, "data", "export")
        exported = line.removesuffix(".").rpartition(" ")[2]
        assert await ctl_json(node, "data", "import", exported) == {"code": 0}
        said = await done(node, "data", "import", str(EXPORTS / "emqx-4.4.json"))
        assert any(line.startswith("Without effect: modules") for line in said)


async def test_replaced_applications_are_named(tmp_path: Path) -> None:
    path = str(tmp_path / "apps.json")
    async with managed_node() as node:
        for secret in ("old", "new"):
            Path(path).write_text(json.dumps({"version": "4.4", "apps": [{"id": "a", "secret": secret, "name": "n"}]}))
            dry = await done(node, "data", "import", path, "--dry-run", "true")
            said = await done(node, "data", "import", path)
        assert dry[-1] == "Replaced application: a" and "apps: 1" in dry
        assert said == ["The emqx data has been imported successfully.", "Replaced application: a"]
        Path(path).write_text(json.dumps({"version": "4.4", "apps": [{"id": "a", "secret": "newer", "name": "n"}]}))
        assert await ctl_json(node, "data", "import", path) == {"replaced_apps": ["a"]}


async def test_import_with_env() -> None:
    async with managed_node() as node:
        env = '{"auth.mnesia.as":"clientid"}'
        await done(node, "data", "import", str(EXPORTS / "emqx-4.1.json"), "--env", env)
        assert node.server.stored_users.get(CLIENT_ID, "carol") is not None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", f"{FAILED}: is not JSON"),
        ('{"version": "4.0"}', f"{FAILED}: its version is not supported"),
        ('{"version": "5.0"}', f"{FAILED}: its version is not supported"),
        ("{}", f"{FAILED}: version is missing: not an exported file"),
        (
            '{"version": "4.4", "apps": [{"id": "a"}, 1]}',
            f"{FAILED}: records that are wrong: 2: apps[0].secret: is missing; apps[1]: expected an object",
        ),
    ],
)
async def test_import_fails(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "some file.json"
    path.write_text(text)
    async with managed_node() as node:
        said = await ctl(node, "data", "import", str(path))
        assert said == (1, told.format(path=path) + "\n", "")


async def test_without_bcrypt_a_file_with_its_hashes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "users.json"
    users = [{"type": "username", "login": "bea", "password_hash": BCRYPT[b"U*U"]}]
    path.write_text(json.dumps({"version": "4.4", "auth_mnesia": users}))
    without(monkeypatch, "bcrypt")
    async with managed_node() as node:
        said = await ctl(node, "data", "import", str(path))
        assert said.status == 1 and said.out.startswith(f"error: file {path}: ") and NO_BCRYPT in said.out


@pytest.mark.parametrize("path", ["/nowhere.json", "/", "/dev/null/x", "/dev/zero", "/x\0y"])
async def test_import_of_what_is_not_there(path: str) -> None:
    async with managed_node() as node:
        said = await ctl(node, "data", "import", path)
        assert said.status == 1 and said.out.startswith("error: file ") and said.out.endswith(": not found\n"), said


@pytest.mark.parametrize("path", ["relative.json", "../x.json"])
async def test_the_path_is_absolute(path: str) -> None:
    async with managed_node() as node:
        said = await ctl(node, "data", "import", path)
        assert said.status == 1 and "absolute" in said.out


@pytest.mark.parametrize("env", ["{", "[]", "1"])
async def test_env_is_an_object(env: str) -> None:
    async with managed_node() as node:
        said = await ctl(node, "data", "import", str(EXPORTS / "emqx-4.4.json"), "--env", env)
        assert said.status == 1 and "--env" in said.out and node.server.stored_users.all() == []
