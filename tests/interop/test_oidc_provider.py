"""Login to the dashboard with oidc-provider, a certified implementation of OpenID Connect from npm."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from yarl import URL

from tests.support.api import managed_node
from tests.support.mqtt_js import INTEROP, mqtt_js
from tests.support.node import free_port
from tests.support.openid_provider import CLIENT_ID, SECRET

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

HEADER = {"X-Taipan-Dashboard": "1"}


@asynccontextmanager
async def oidc_provider(dashboard: str, claims: str) -> AsyncIterator[str]:
    """Its issuer. ``claims``: where the claims are."""
    node, _ = mqtt_js()
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        node,
        str(INTEROP / "oidc_provider.mjs"),
        str(port),
        f"{dashboard}/api/v4/auth/openid/callback",
        f"{dashboard}/",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "CLAIMS": claims},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("listening "), line
        yield line.split()[1]
    finally:
        process.terminate()
        await process.wait()


async def page(browser: aiohttp.ClientSession, method: str, url: str, **form: str) -> tuple[URL, str]:
    """Where a browser arrives that opens ``url``, and the text of the page."""
    async with browser.request(method, url, data=form or None) as response:
        return response.real_url, await response.text()


async def log_in(browser: aiohttp.ClientSession, dashboard: str, user: str) -> URL:
    """The whole way: the provider's form for the login, and the one for the consent."""
    arrived, text = await page(browser, "GET", f"{dashboard}/api/v4/auth/openid/start")
    for form in ({"prompt": "login", "login": user, "password": "any"}, {"prompt": "consent"}):
        assert "/interaction/" in str(arrived), (arrived, text)
        found = re.search(r'action="([^"]+)"', text)
        assert found is not None, text
        arrived, text = await page(browser, "POST", found[1], **form)
    return arrived


@pytest.mark.parametrize("claims", ["userinfo", "id_token"])
async def test_log_in_and_out(claims: str) -> None:
    port = free_port()
    dashboard = f"http://127.0.0.1:{port}"
    async with oidc_provider(dashboard, claims) as issuer:
        openid = {
            "issuer": issuer,
            "client_id": CLIENT_ID,
            "client_secret": SECRET,
            "dashboard_url": dashboard,
            "scopes": ["openid", "profile", "email", "groups"],
            "administrators": ["mqtt-admins"],
            "operators": ["night-shift"],
            "logout_at_provider": True,
        }
        async with managed_node(dashboard={"bind": f"127.0.0.1:{port}", "openid": openid}):
            for user, role in (("root", "administrator"), ("olga", "operator"), ("nobody", "")):
                async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
                    arrived = await log_in(browser, dashboard, user)
                    async with browser.get(f"{dashboard}/api/v4/auth", headers=HEADER) as response:
                        told = await response.json()
                    if not role:
                        assert (str(arrived), told["code"]) == (f"{dashboard}/#/?openid=role", 104)
                        continue
                    assert str(arrived) == f"{dashboard}/"
                    assert (told["data"]["username"], told["data"]["role"]) == (f"openid:{user}", role)
                    async with browser.delete(f"{dashboard}/api/v4/auth", headers=HEADER) as response:
                        url = (await response.json())["data"]["url"]
                    _, text = await page(browser, "GET", url)
                    assert "Do you want to sign-out" in text, text
