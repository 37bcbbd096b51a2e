"""Fixtures that several directories of tests have in common; their ``conftest.py`` imports those they want."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from .certificates import Certificates
from .fake_engine import FakeEngine
from .http_sink import HttpSink


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """An authority, and a certificate of ``localhost``."""
    made = Certificates(tmp_path)
    made.issue("localhost")
    return made


@pytest_asyncio.fixture
async def sink() -> AsyncIterator[HttpSink]:
    made = await HttpSink().start()
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    yield made
    await made.close()
