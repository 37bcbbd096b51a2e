"""The how-to docs/control-access.md: its requests are sent as printed, and do what it says."""

import json
import re
from pathlib import Path

import pytest

from tests.support.api import connect_code, managed_node

pytestmark = pytest.mark.asyncio

PAGE = (Path(__file__).parents[2] / "docs" / "control-access.md").read_text(encoding="utf-8")
REQUESTS = re.findall(r"^curl -u \$TAIPAN (?:-H '([^']+)' )?-X (\w+) \$API(/\S+)(?: -d '(.*?)')?$", PAGE, re.M | re.S)
BAD_CREDENTIALS, BANNED, ADMINISTRATIVE_ACTION = 0x86, 0x8A, 0x98


async def test_the_requests() -> None:
    assert [(method, path) for _, method, path, _ in REQUESTS] == [
        ("POST", "/auth_user"), ("POST", "/auth_user"), ("POST", "/auth_user"), ("POST", "/banned"),
        ("POST", "/banned"),
    ]  # fmt: skip
    async with managed_node() as node:
        porch = await node.client("porch")
        answers = []
        for header, method, path, body in REQUESTS:
            headers = dict([header.split(": ")]) if header else {}
            reply = await node.api.ask(method, path, json.loads(body) if body else None, headers=headers)
            assert (reply.status, reply.code) == (200, 0), reply.text
            answers.append(reply.json)
        # Ben and the user of another system log in; so does a device with the secret that was made for it.
        secret = answers[1]["passwords"]["meter1"]
        for username, password in (("ben", b"secret"), ("cora", b"secret"), ("meter1", secret.encode())):
            await node.client(username=username, password=password)
        await porch.expect_disconnect(ADMINISTRATIVE_ACTION)
        assert await connect_code(node, "porch") == BANNED
        assert await connect_code(node, "typing-error", "bem", b"secret") == BAD_CREDENTIALS
        # The same key answers with the same secrets.
        header, _, path, body = REQUESTS[1]
        again = await node.api.ask("POST", path, json.loads(body), headers=dict([header.split(": ")]))
        assert again.json["passwords"]["meter1"] == secret
        assert (await node.api.get("/clients/porch/explain")).data["events"]
