"""The documentation's search, in Chromium, where the site is opened as a file."""

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import PATIENCE
from tests.support.patience import patience

if TYPE_CHECKING:
    from playwright.async_api import Browser

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_it_finds_a_page(browser: "Browser", tmp_path: Path) -> None:
    build = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site"),
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert await build.wait() == 0
    page = await browser.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    await page.goto((tmp_path / "site" / "api" / "access.html").as_uri())
    await page.keyboard.press("s")
    await page.locator("input.md-search__input").press_sequentially("retained messages", timeout=patience(90) * 1000)
    found = page.locator(".md-search-result__item")
    await found.first.wait_for(timeout=patience(PATIENCE) * 1000)
    assert await found.count() > 3 and not wrong
    await page.close()
