"""The libraries of sinks are extras: imported when a resource connects, and missed with one sentence."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.types.builtin import RESOURCE_TYPES
from tests.support.fake_engine import FakeEngine

EXTRAS = [
    ("backend_pgsql", "asyncpg", "postgresql"),
    ("backend_mysql", "aiomysql", "mysql"),
    ("backend_redis_single", "redis", "redis"),
    ("bridge_kafka", "aiokafka", "kafka"),
    ("bridge_rabbit", "aiormq", "rabbitmq"),
]


@pytest.mark.parametrize("type, library, extra", EXTRAS)
@pytest.mark.asyncio
async def test_a_library_that_is_missing(type: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    kind = next(each for each in RESOURCE_TYPES if each.name == type)
    config: dict[str, Any] = {
        "server": "127.0.0.1:1", "servers": "127.0.0.1:1", "database": 0 if extra == "redis" else "d", "user": "u",
        "username": "u",
    }  # fmt: skip
    known = {each.name for each in kind.params}
    made = FakeEngine().make(kind, **{name: value for name, value in config.items() if name in known})
    with pytest.raises(ResourceError) as missing:
        await made.test()
    assert str(missing.value) == f"{library} is not installed: pip install 'taipan-mqtt[{extra}]'"
    await made.close()


def test_types_import_no_library() -> None:
    libraries = [library for _, library, _ in EXTRAS]
    code = f"import sys, taipan.ruleengine.types.builtin; print([each for each in {libraries} if each in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"
