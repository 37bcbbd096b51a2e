"""Delivery check: why a client does not get a topic, asked from the client's page and by a form."""

import re
from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, expect

from taipan.broker.mqtt import constants as c
from tests.support.browser import DashboardNode, accessible
from tests.support.forms import HOSTILE, fault, row, send

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OpenPage = Callable[..., Awaitable[Page]]


async def test_why_a_topic_does_not_arrive(open_page: OpenPage, shared_node: DashboardNode) -> None:
    porch = await shared_node.client("porch")
    await porch.subscribe("/Garden/#", qos=1)
    page = await open_page("/clients/porch/subscriptions", role="viewer")
    await page.get_by_role("link", name="Why does a topic not arrive?").click()
    await expect(page).to_have_url(re.compile(r"#/topics/why\?clientid=porch$"))
    await send(page, topic="")
    await expect(fault(page, "topic")).to_have_text("This field is required.")
    answer = page.get_by_role("status").filter(has_text="the messages")
    await send(page, topic="garden/lamp")
    await expect(answer).to_contain_text("Does not receive the messages")
    await expect(answer).to_contain_text("/Garden/# (QoS 1) differs in upper and lower case")
    await expect(row(page, "Subscription").first).to_contain_text("stops here")
    await expect(page).to_have_url(re.compile(r"topic=garden"))
    await accessible(page, (1440, 1024, 390))
    # The answer follows the state.
    await porch.subscribe("garden/+", qos=0)
    await expect(answer).to_contain_text("Receives the messages")
    await page.get_by_role("link", name="garden/lamp").click()
    await page.get_by_role("link", name="Does a client receive it?").click()
    await expect(page.get_by_role("textbox", name="Topic name")).to_have_value("garden/lamp")


async def test_a_client_that_is_away_or_unknown(open_page: OpenPage, shared_node: DashboardNode) -> None:
    away = await shared_node.client("truck-7", properties={c.SESSION_EXPIRY_INTERVAL: 3600})
    await away.subscribe("plant/#", qos=1)
    await away.disconnect()
    page = await open_page("/topics/why?clientid=truck-7&topic=plant/oslo")
    answer = page.get_by_role("status").filter(has_text="the messages")
    await expect(answer).to_contain_text("Receives the messages later")
    await expect(row(page, "Connection")).to_contain_text("waits")
    await page.goto(f"{shared_node.url}/#/topics/why?clientid=truck-7&topic=plant/oslo&qos=0")
    await expect(answer).to_contain_text("Does not receive the messages")
    await expect(row(page, "Connection")).to_contain_text("queue_qos0")
    await send(page, clientid=HOSTILE, topic="plant/oslo")
    await expect(answer).to_contain_text("no session")
    await page.goto(f"{shared_node.url}/#/topics/why?clientid=a&topic=plant/%23")
    await expect(page.get_by_role("alert")).to_contain_text("is not a topic name")
