"""/reasons: every reason that the log's page has, with the same words; and what the code counts is among them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from taipan.broker.access.registry import installed_sources
from taipan.broker.mqtt import reason_codes
from taipan.broker.session import protocols
from taipan.management.history.figures import DROPS
from taipan.management.operations.advice import ADVICE
from taipan.management.operations.reasons import REASONS, ReasonsQuery, advice_of, explained_reasons, text_of
from tests.support.api import assert_refused, managed_node

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "log.md").read_text("utf-8")
SECTIONS = {
    "Why a client was refused or lost": ("client", 2),
    "Why a message or subscription was refused": ("message", 1),
    "Why a socket never became a client": ("socket", 1),
    "Why a delivery was dropped": ("delivery", 2),
    "Why something from another node was refused": ("node", 1),
}


def plain(text: str) -> str:
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text).replace("`", "").strip()


def of_page() -> set[tuple[str, str, str]]:
    found: dict[tuple[str, str, str], None] = {}
    for title, (kind, _) in SECTIONS.items():
        section = re.search(rf"(?ms)^## {re.escape(title)}$(.*?)(?=^## |\Z)", PAGE)
        assert section is not None, title
        reasons: list[str] = []
        seen: set[str] = set()
        for line in section[1].splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if not cells or cells[0] == "reason" or set(line) <= set("|- "):
                continue
            reasons = re.findall(r"`([^`]+)`", cells[0]) or reasons
            for reason in reasons:
                if kind != "node" or reason not in seen:
                    found[kind, reason, plain(cells[-1])] = None
                seen.add(reason)
    return set(found)


def test_the_page_of_the_log_has_the_same() -> None:
    here = {(each.kind, each.reason, each.text) for each in REASONS if each.kind != "other"}
    assert here ^ of_page() == set()


def test_advice_is_about_reasons_that_there_are() -> None:
    known = {each.reason for each in REASONS}
    assert {key.rpartition(".")[2] for key in ADVICE} <= known
    assert (
        "longer" in advice_of("session_ended", "expired", "-") and advice_of("delivery_dropped", "expired", "-") == ""
    )
    assert "Access" in advice_of("client_refused", "banned", "/banned/clientid/c")


@pytest.mark.parametrize(
    "event, reason, setting, about",
    [
        ("client_refused", "not_authorized", "allow_anonymous", "a username and a password"),
        ("client_refused", "not_authorized", "access.http.auth_url", "Test the login"),
        ("client_disconnected", "not_authorized", "access.rules.3", "Check the topic's access"),
        ("publish_refused", "not_authorized", "access.no_match", "Check the topic's access"),
        ("subscribe_refused", "quota_exceeded", "exclusive_subscription", "until the other client unsubscribes"),
        ("subscribe_refused", "quota_exceeded", "max_subscriptions", "Increase the setting"),
        ("subscribe_refused", "topic_filter_invalid", "exclusive_subscription", "exclusive_subscription = true"),
        ("client_refused", "malformed_packet", "type", "listener of its protocol"),
        ("client_refused", "malformed_packet", "-", "Fix the client"),
    ],
)
def test_advice_fits_the_setting_that_decided(event: str, reason: str, setting: str, about: str) -> None:
    assert about in advice_of(event, reason, setting)


def literal(node: ast.expr) -> str:
    """Return the text that an expression is, or begins with."""
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def counted_in_the_code() -> Iterator[tuple[str, str]]:
    """Yield the names under which the code counts refusals, as far as they are literals, with their file: of one that
    ends with a value, ``webhook_failed_``."""
    for package in ("broker", "ruleengine", "management"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if not isinstance(node, ast.Call) or not node.args or "cluster" in file.parts:
                    continue
                called = ast.unparse(node.func).rpartition(".")[2]
                first = literal(node.args[0])
                if called == "_count_drop":
                    yield f"rule_row_{first}", file.name
                elif called == "_note" and first:
                    yield f"{first}_{literal(node.args[1])}", file.name
                elif first and ast.unparse(node.func).endswith(".refusals.add"):
                    yield first, file.name


def test_what_the_code_counts_is_explained() -> None:
    known = [name for each in explained_reasons(ReasonsQuery()) for name in each.counters]
    counted = dict(counted_in_the_code())
    assert len(counted) > 20
    prefixes = tuple(name.partition("<")[0] for name in known if "<" in name)
    missing = {
        name: file
        for name, file in counted.items()
        if not name.startswith(prefixes) and not any(each.startswith(name) for each in known)
    }
    assert not missing


@pytest.mark.parametrize("name", ["webhook_failed_http_500", "bridge_quota_exceeded", "webhook_failed_<reason>"])
def test_a_name_that_ends_with_a_value_is_found(name: str) -> None:
    (found,) = explained_reasons(ReasonsQuery(reason=name))
    assert found.text and name.startswith(found.reason.partition("<")[0])


def test_every_reason_of_a_dropped_delivery_is_explained() -> None:
    names = (
        "QUEUE_FULL",
        "TOO_LARGE",
        "EXPIRED",
        "QOS0_MSG",
        "NO_LOCAL",
        "REVOKED",
        "MEMORY",
        "UNREADABLE",
        "LINK_FULL",
    )
    for name in names:
        assert text_of("delivery_dropped", getattr(protocols, name), ""), name


@pytest.mark.parametrize(
    "event, reason, setting, about",
    [
        ("publish_refused", "not_authorized", "access.rules.3", "this rule denies it"),
        ("publish_refused", "not_authorized", "/acl/clientid/c/topic/t", "stored rule"),
        ("publish_refused", "not_authorized", "access.no_match", "no rule matches"),
        ("client_refused", "not_authorized", "mountpoint", "mount point"),
        ("client_refused", "banned", "/banned/clientid/c", "ban applies to the client"),
        ("client_disconnected", "tcp_closed", "-", "without DISCONNECT"),
        ("client_disconnected", reason_codes.name(reason_codes.PROTOCOL_ERROR), "-", "violates the MQTT standard"),
        (
            "delivery_dropped",
            "queue_full",
            "max_queued_messages, max_queued_bytes or max_outbox_bytes",
            "queue is full",
        ),
        ("client_connected", "<b>\u202e", "x", ""),
    ],
)
def test_an_event_in_a_sentence(event: str, reason: str, setting: str, about: str) -> None:
    text = text_of(event, reason, setting)
    assert about in text and bool(text) == bool(about)


@pytest.mark.asyncio
async def test_reasons_over_the_api() -> None:
    async with managed_node(access={"rules": [{"allow": False, "topics": ["s/#"]}]}) as node:
        everything = (await node.api.get("/reasons")).data
        # Other tests of this process may have used sources of packages.
        assert len(everything) == len(REASONS) + sum(len(each.explained()) for each in installed_sources())
        counted = (await node.api.get("/reasons", reason="publish_quota_exceeded")).data
        assert {each["reason"] for each in counted} == {"quota_exceeded"} and len(counted) > 3
        assert (await node.api.get("/reasons", reason="<script>")).data == []
        for name in DROPS:
            assert (await node.api.get("/reasons", reason=name)).data, name
        assert {each["kind"] for each in (await node.api.get("/reasons", kind="socket")).data} == {"socket"}
        assert_refused(await node.api.get("/reasons", kind="else"), 400, 108, "kind")
        peer = await node.client("c")
        await peer.subscribe("s/1", expect=[0x87])
        events = (await node.api.get("/clients/c/explain")).data["events"]
        (refused,) = [each for each in events if each["event"] == "subscribe_refused"]
        assert "this rule denies it" in refused["text"]
