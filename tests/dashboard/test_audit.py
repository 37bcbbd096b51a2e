"""Audit: a change of a dashboard user is listed with its values, filtered, downloaded; a viewer does not see it."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import DashboardNode, accessible
from tests.support.forms import HOSTILE, SHOWN

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]


async def test_changes_are_found_and_downloaded(
    open_page: OpenPage, shared_node: DashboardNode, tmp_path: Path
) -> None:
    assert (await shared_node.api.post("/banned", {"who": HOSTILE, "as": "clientid", "reason": "floods"})).code == 0
    page = await open_page("/trouble/audit")
    rows = page.get_by_role("table", name="Audit").locator("tbody tr")
    ban = rows.filter(has_text="POST /banned")
    await expect(ban).to_contain_text(SHOWN.split("&")[0])
    await accessible(page, (1440, 1024, 390))
    await page.get_by_label("Change contains").fill("/nothing")
    await expect(page.get_by_text("No changes found.")).to_be_visible()
    await page.get_by_label("Change contains").fill("banned")
    await expect(ban).to_have_count(1)
    async with page.expect_download() as started:
        await page.get_by_role("button", name="Download").click()
    path = tmp_path / "audit.jsonl"
    await (await started.value).save_as(path)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [line["after"]["who"] for line in lines] == [HOSTILE]
    viewer = await open_page("/trouble/audit", role="viewer")
    await expect(viewer.get_by_text("Only administrators can see the audit.")).to_be_visible()
