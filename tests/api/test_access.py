"""/access/explain and /access/try_login: why a client may or may not, by the code that decides for clients."""

from typing import Any

import pytest

from taipan.broker.access.password_hash import ScryptHash
from tests.support.api import ManagedNode, assert_refused, connect_code, managed_node
from tests.support.auth_service import auth_service
from tests.support.fake_cluster import fake_nodes

pytestmark = pytest.mark.asyncio

RULES = [
    {"allow": False, "action": "subscribe", "topics": ["secret/#"]},
    {"allow": True, "topics": ["%u/#"], "username": "ann"},
    {"allow": False, "action": "publish", "topics": ["own/#"], "address": "192.0.2.0/24"},
]
USERS = [
    {"username": "ann", "password_hash": str(ScryptHash.create(b"right", n=16))},
    {"username": "root", "password_hash": str(ScryptHash.create(b"r", n=16)), "is_superuser": True},
]


async def explained(node: ManagedNode, topic: str, action: str, **query: Any) -> Any:
    return (await node.api.get("/access/explain", topic=topic, action=action, **query)).data


def sources(told: Any) -> list[tuple[str, Any]]:
    return [(each["source"], each["permission"]) for each in told["steps"]]


async def test_the_rule_that_decides_is_named_with_all_that_was_asked_before() -> None:
    async with managed_node(access={"rules": RULES, "no_match": "deny"}, zone={"allow_anonymous": True}) as node:
        await node.client("c")
        told = await explained(node, "secret/door", "subscribe", clientid="c")
        assert (told["allowed"], told["rule"]) == (False, "access.rules.0")
        assert "deny subscribe secret/#" in told["reason"]
        assert sources(told) == [
            ("zone", None), ("superuser", None), ("enable_acl", None), ("stored", None), ("configuration", "deny"),
        ]  # fmt: skip
        assert told["client"]["connected"] is True and told["client"]["proved_by"] == ""
        told = await explained(node, "else", "publish", clientid="c")
        assert (told["allowed"], told["rule"], told["steps"][-1]["source"]) == (False, "access.no_match", "no_match")


async def test_what_is_explained_is_what_happens_and_asking_changes_nothing() -> None:
    async with managed_node(access={"rules": RULES}) as node:
        rule = {"clientid": "c", "topic": "a/+", "action": "sub", "access": "deny"}
        assert (await node.api.post("/acl", rule)).code == 0
        peer = await node.client("c")
        for topic_filter, allowed in (("a/b", False), ("b/c", True), ("#", False), ("$share/g/a/b", False)):
            told = await explained(node, topic_filter, "subscribe", clientid="c")
            assert told["allowed"] is allowed
            assert ("cache", "allow") not in sources(told) and ("cache", "deny") not in sources(told)
            await peer.subscribe(topic_filter, expect=[0 if allowed else 0x87])
            again = await explained(node, topic_filter, "subscribe", clientid="c")
            assert (again["allowed"], again["rule"]) == (allowed, told["rule"])
            assert again["steps"][-1]["source"] == "cache"
            await node.api.delete("/clients/c/acl_cache")
        told = await explained(node, "a/b", "subscribe", clientid="c")
        assert told["rule"] == "/acl/clientid/c/topic/a%2F%2B"


async def test_a_topic_that_was_published_to_is_let_in_by_what_the_connection_remembers() -> None:
    async with managed_node() as node:
        peer = await node.client("c")
        await peer.publish("t", b"x", 1)
        told = await explained(node, "t", "publish", clientid="c")
        assert told["allowed"] is True and ("admitted", "allow") in sources(told)
        told = await explained(node, "u", "publish", clientid="c")
        assert told["allowed"] is True and ("admitted", None) in sources(told)
        assert told["rule"] == "access.no_match"


async def test_one_who_might_come() -> None:
    async with managed_node(access={"rules": RULES, "users": USERS, "no_match": "deny"}) as node:
        ann = await explained(node, "ann/x", "publish", username="ann")
        assert (ann["allowed"], ann["rule"], ann["client"]["proved_by"]) == (True, "access.rules.1", "configuration")
        assert ann["client"]["connected"] is False
        nobody = await explained(node, "ann/x", "publish", username="nobody")
        assert (nobody["allowed"], nobody["client"]["proved_by"]) == (False, "")
        root = await explained(node, "secret/#", "subscribe", username="root")
        assert (root["allowed"], root["rule"]) == (True, "is_superuser")
        near = await explained(node, "own/x", "publish", address="192.0.2.7")
        assert (near["allowed"], near["rule"]) == (False, "access.rules.2")
        far = await explained(node, "own/x", "publish", address="198.51.100.7")
        assert far["rule"] == "access.no_match"


async def test_the_zone_is_asked_first() -> None:
    async with managed_node(zone={"max_qos": 1, "retain_available": False, "max_topic_levels": 2}) as node:
        listener = "mqtt:tcp:tcp-0"
        for topic, action, query, rule in (
            ("a", "publish", {"qos": 2}, "max_qos"),
            ("a", "publish", {"retain": "true"}, "retain_available"),
            ("a/b/c", "publish", {}, "max_topic_levels"),
            ("a/b/c", "subscribe", {}, "max_topic_levels"),
            ("$SYS/x", "publish", {}, "-"),
        ):
            told = await explained(node, topic, action, listener=listener, **query)
            assert (told["allowed"], told["rule"], told["steps"][-1]["source"]) == (False, rule, "zone"), topic


async def test_the_service_is_asked_where_that_is_wanted() -> None:
    async with auth_service() as service, managed_node(access={"http": service.settings()}) as node:
        service.replies["/acl"] = 403
        await node.client("c")
        told = await explained(node, "t", "publish", clientid="c")
        assert told["allowed"] is None and service.questions() == []
        assert told["steps"][-1]["detail"].startswith("was not asked")
        told = await explained(node, "t", "publish", clientid="c", ask="1")
        assert (told["allowed"], told["rule"]) == (False, "access.http.acl_url")
        assert service.topics() == ["t"]
        service.replies["/acl"] = 500
        told = await explained(node, "t", "publish", clientid="c", ask="1")
        assert told["allowed"] is False and told["steps"][-1]["detail"] == "http_status_500"


async def test_a_client_of_another_node_is_explained_there() -> None:
    async with fake_nodes(2, access={"rules": RULES}) as nodes:
        await nodes[1].client("c")
        told = (await nodes.api.get("/access/explain", topic="secret/x", action="subscribe", clientid="c")).data
        assert (told["allowed"], told["client"]["node"]) == (False, nodes[1].name)


@pytest.mark.parametrize(
    "query, code, about",
    [
        ({"topic": "t", "action": "publish"}, 107, "clientid"),
        ({"topic": "t", "clientid": "c"}, 107, "action"),
        ({"topic": "t", "action": "eat", "clientid": "c"}, 108, "action"),
        ({"topic": "t/#", "action": "publish", "clientid": "c"}, 115, "topic name"),
        ({"topic": "t", "action": "publish", "clientid": "nobody"}, 112, "nobody"),
        ({"topic": "t", "action": "publish", "address": "here"}, 108, "address"),
        ({"topic": "t", "action": "publish", "listener": "x"}, 102, "listener"),
        ({"topic": "t", "action": "publish", "clientid": "c", "qos": 3}, 108, "qos"),
        ({"topic": "t", "action": "publish", "username": "\0"}, 108, "username"),
        ({"topic": "t", "action": "publish", "username": "x" * 65_536}, 108, "username"),
    ],
)
async def test_what_cannot_be_asked(query: dict[str, Any], code: int, about: str) -> None:
    async with managed_node() as node:
        await node.client("c")
        reply = await node.api.get("/access/explain", **query)
        assert reply.code == code and about in reply.json["message"], reply.text


async def test_a_filter_that_is_none_is_refused_as_a_client_is() -> None:
    async with managed_node() as node:
        told = await explained(node, "a/#/b", "subscribe", username="u")
        assert told["allowed"] is False and told["steps"][-1]["source"] == "zone"


# ------------------------------------------------------------------------- logins


async def tried(node: ManagedNode, **body: Any) -> Any:
    return (await node.api.post("/access/try_login", body)).data


@pytest.mark.parametrize(
    "username, password", [("ann", "right"), ("ann", "wrong"), ("ann", None), ("bob", "x"), (None, None), ("root", "r")]
)
@pytest.mark.parametrize("anonymous", [True, False])
async def test_it_says_what_a_client_would_be_told(username: str | None, password: str | None, anonymous: bool) -> None:
    async with managed_node(access={"users": USERS}, zone={"allow_anonymous": anonymous}) as node:
        told = await tried(node, clientid="c", username=username, password=password)
        code = await connect_code(node, "c", username, None if password is None else password.encode())
        assert (told["reason_code"], told["allowed"]) == (code, code == 0)
        assert told["is_superuser"] is (username == "root")
        assert told["steps"]


async def test_no_trace_of_it_is_left() -> None:
    async with managed_node(access={"users": USERS}) as node:
        seen: list[str] = []
        node.server.context.hooks.client_connect.add(lambda client, properties: seen.append(client.client_id))
        before = (await node.api.get("/metrics")).data[0]["metrics"]
        assert (await tried(node, clientid="c", username="ann", password="right"))["allowed"] is True
        after = (await node.api.get("/metrics")).data[0]["metrics"]
        assert {key for key in before if key.startswith("client") and before[key] != after[key]} == set()
        assert seen == [] and (await node.api.get("/clients/c/explain")).code == 112
        assert (await node.api.get("/clients")).data == []


async def test_guesses_are_slowed_and_slow_no_client() -> None:
    async with managed_node(access={"users": USERS, "guesses": 2, "guess_delay": 0.2}) as node:
        for _ in range(3):
            assert (await tried(node, username="ann", password="wrong", address="127.0.0.1"))["reason_code"] == 0x86
        passwords = node.server.access.authentication.passwords
        user = passwords.guesses
        assert len(user._addresses) == len(user._names) == 0
        assert passwords.trial_guesses.delay("try_login", b"", False) > 0
        assert node.server.metrics.refusals.snapshot()["password_attempt_held"] > 0


async def test_what_keeps_a_client_out_before_and_after_its_password() -> None:
    zone = {"max_client_id_length": 5, "mountpoint": "%u/"}
    async with managed_node(access={"users": USERS}, zone={**zone, "allow_anonymous": True}) as node:
        told = await tried(node, clientid="longer", username="ann", password="right")
        assert (told["reason_code"], told["steps"][-1]["authenticator"]) == (0x85, "clientid")
        assert (await node.api.post("/banned", {"as": "peerhost", "who": "192.0.2.9"})).code == 0
        told = await tried(node, clientid="c", username="ann", password="right", address="192.0.2.9")
        assert (told["reason_code"], told["setting"]) == (0x8A, "/banned/peerhost/192.0.2.9")
        told = await tried(node, clientid="c")
        assert (told["allowed"], told["setting"]) == (False, "mountpoint")
        peer = await node.client("c", username="root", password=b"r", expiry=100)
        await peer.ping()
        told = await tried(node, clientid="c", username="ann", password="right")
        assert (told["allowed"], told["setting"]) == (False, "access.session_owner")
        told = await tried(node, clientid="", protocol="3.1", username="ann", password="right")
        assert (told["reason_code"], told["setting"]) == (0x85, "")


async def test_the_chain_with_services_step_by_step() -> None:
    async with (
        auth_service() as service,
        managed_node(access={"users": USERS, "http": service.settings(), "jwt": {"secret": "s" * 32}}) as node,
    ):
        service.replies["/auth"] = "ignore"
        told = await tried(node, clientid="c", username="bob", password="x")
        steps = [(each["authenticator"], each["outcome"]) for each in told["steps"]]
        assert steps[4:] == [
            ("configuration", "pass"), ("stored", "pass"), ("jwt", "pass"), ("http", "pass"), ("anonymous", "deny"),
        ]  # fmt: skip
        service.replies["/auth"] = 200
        told = await tried(node, clientid="c", username="bob", password="x")
        assert told["allowed"] is True and ("http", "allow") in [
            (each["authenticator"], each["outcome"]) for each in told["steps"]
        ]


async def test_a_password_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    async with managed_node(access={"users": USERS}) as node:
        await tried(node, username="ann", password="very-secret-indeed")
    assert "very-secret-indeed" not in caplog.text


@pytest.mark.parametrize(
    "body, code",
    [
        ({"protocol": "4.2"}, 108),
        ({"username": 5}, 108),
        ({"clientid": "\0"}, 108),
        ({"address": "x"}, 108),
        ({"listener": "x"}, 102),
    ],
)
async def test_what_is_no_login(body: dict[str, Any], code: int) -> None:
    async with managed_node() as node:
        reply = await node.api.post("/access/try_login", body)
        assert_refused(reply, 404 if code == 102 else 400, code)


async def test_rules_for_anonymous_clients_and_for_one_listener_are_explained() -> None:
    rules = [
        {"allow": True, "topics": ["open"], "anonymous": True, "listener": "tcp-0"},
        {"allow": False, "topics": ["open"], "listener": "tcp-0"},
    ]
    async with managed_node(access={"rules": rules, "users": USERS}, zone={"allow_anonymous": True}) as node:
        nobody = await explained(node, "open", "publish", clientid="c", listener="tcp-0")
        assert (nobody["allowed"], nobody["rule"]) == (True, "access.rules.0")
        assert "allow pubsub open for anonymous clients listener=tcp-0" in nobody["reason"]
        ann = await explained(node, "open", "publish", username="ann")
        assert (ann["allowed"], ann["rule"]) == (False, "access.rules.1")
