"""users, mqtt-user, user, clientid, acl, mqtt-acl, banned."""

import pytest

from tests.support.api import managed_node
from tests.support.ctl import ctl, ctl_json, done, refused

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("noun", ["users", "mqtt-user"])
async def test_users(noun: str) -> None:
    async with managed_node() as node:
        assert await done(node, noun, "list") == []
        assert (await done(node, noun, "add", "eve", "secret"))[0] == "ok"
        assert await done(node, noun, "add", "ada", "secret", "true") == ["ok"]
        assert await refused(node, noun, "add", "eve", "other") == "user eve: exists already"
        assert await done(node, noun, "list") == ['User(login = "eve")', 'User(login = "ada")']
        assert await done(node, noun, "show", "ada") == ['User(login = "ada" is_super = true)']
        assert await done(node, noun, "update", "ada", "new") == ["ok"]
        assert await done(node, noun, "show", "ada") == ['User(login = "ada" is_super = true)']
        assert await done(node, noun, "update", "ada", "new", "false") == ["ok"]
        assert await done(node, noun, "show", "ada") == ['User(login = "ada" is_super = false)']
        assert await ctl_json(node, noun, "show", "eve") == (await node.api.get("/auth_user/eve")).data
        assert "secret" not in (await ctl(node, noun, "list", as_json=True)).out
        assert await refused(node, noun, "update", "bob", "x") == "user bob: not found"
        assert await refused(node, noun, "show", "bob") == "user bob: not found"
        assert await done(node, noun, "del", "eve") == ["ok"]
        assert await done(node, noun, "delete", "ada") == ["ok"]
        assert await refused(node, noun, "del", "eve") == "user eve: not found"
        assert (await ctl(node, noun, "add", "eve", "secret", "perhaps")).status == 1
        assert "superuser eve" in await refused(node, noun, "add", "eve", "public", "true")
        default = "which anybody may know: eve"
        said, warning = await done(node, noun, "add", "eve", "public")
        assert said == "ok" and warning.startswith("Warning: ") and warning.endswith(default)
        assert (await done(node, noun, "update", "eve", "emqxsecret"))[1].endswith(default)
        assert await done(node, noun, "del", "eve") == ["ok"]
        assert (await ctl(node, noun, "add", "eve", "")).status == 1
        assert await done(node, noun, "list") == []


@pytest.mark.parametrize("noun, what", [("user", "user"), ("clientid", "client identifier")])
async def test_accounts(noun: str, what: str) -> None:
    async with managed_node() as node:
        for name in ("one", "two"):
            assert (await done(node, noun, "add", name, "secret"))[0] == "ok"
        assert await done(node, noun, "list") == ["two", "one"]
        assert await refused(node, noun, "add", "one", "x") == f"{what} one: exists already"
        assert await done(node, noun, "update", "one", "other") == ["ok"]
        assert (await done(node, noun, "update", "one", "public"))[1].endswith("which anybody may know: one")
        assert await refused(node, noun, "update", "three", "x") == f"{what} three: not found"
        assert await done(node, noun, "del", "one") == ["ok"]
        assert await refused(node, noun, "del", "one") == f"{what} one: not found"
        path = "/auth_username" if noun == "user" else "/auth_clientid"
        assert await ctl_json(node, noun, "list") == (await node.api.get(path)).data


async def test_a_user_made_here_comes_in() -> None:
    async with managed_node(zone={"allow_anonymous": False}) as node:
        await done(node, "users", "add", "eve", "secret")
        await node.client("c", 4, username="eve", password=b"secret")
        assert len(await done(node, "clients", "list")) == 1


@pytest.mark.parametrize(
    "who, before",
    [(("clientid", "c"), 'clientid = "c"'), (("username", "u"), 'username = "u"'), (("_all",), "$all")],
    ids=["clientid", "username", "_all"],
)
async def test_acl(who: tuple[str, ...], before: str) -> None:
    async with managed_node() as node:
        assert await done(node, "acl", "add", *who, "t/%c", "pub", "allow") == ["ok"]
        assert await done(node, "acl", "add", *who, "u/#", "pubsub", "deny") == ["ok"]
        lines = {
            f'Acl({before} topic = "t/%c" action = pub access = allow)',
            f'Acl({before} topic = "u/#" action = pub access = deny)',
            f'Acl({before} topic = "u/#" action = sub access = deny)',
        }
        assert set(await done(node, "acl", "show", *who)) == lines
        assert set(await done(node, "acl", "list")) == set(await done(node, "acl", "list", who[0])) == lines
        assert len(await ctl_json(node, "acl", "list")) == 3
        other = "username" if who[0] != "username" else "clientid"
        assert await done(node, "acl", "list", other) == []
        assert await done(node, "acl", "del", *who, "u/#") == ["ok"]
        assert await refused(node, "acl", "del", *who, "u/#") == f"access rule {' '.join(who)}: not found"
        assert len(await done(node, "acl", "list")) == 1
        for bad in (("t", "fly", "allow"), ("t", "pub", "perhaps"), ("t/#/u", "pub", "allow")):
            said = await ctl(node, "acl", "add", *who, *bad)
            assert said.status == 1 and said.out.startswith("error: ")
        assert await done(node, "acl", "delete", *who, "t/%c") == ["ok"]
        assert await refused(node, "acl", "show", *who) == f"access rule {' '.join(who)}: not found"


async def test_mqtt_acl() -> None:
    async with managed_node() as node:
        assert await done(node, "mqtt-acl", "add", "eve", "t/1", "pubsub", "true") == ["ok"]
        assert await done(node, "mqtt-acl", "add", "$all", "t/2", "sub", "false") == ["ok"]
        eve = 'Acl(login = "eve" topic = "t/1" action = pubsub allow = true)'
        everybody = 'Acl(login = "$all" topic = "t/2" action = sub allow = false)'
        assert await done(node, "mqtt-acl", "list") == [eve, everybody]
        assert await done(node, "mqtt-acl", "show", "eve") == [eve]
        assert await ctl_json(node, "mqtt-acl", "list") == (await node.api.get("/broker_acl")).data
        assert await refused(node, "mqtt-acl", "show", "bob") == "access rule bob: not found"
        said = await ctl(node, "mqtt-acl", "add", "eve", "t/1", "pub", "yes")
        assert said.status == 1 and said.out.startswith("error: ")
        assert await done(node, "mqtt-acl", "del", "eve", "t/1") == ["ok"]
        assert await refused(node, "mqtt-acl", "del", "eve", "t/1") == "access rule eve: not found"


async def test_acl_cache_clean() -> None:
    async with managed_node(access={"rules": [{"allow": True, "topics": ["#"]}]}) as node:
        peer = await node.client("c", 4)

        async def cached() -> int:
            await peer.publish("t/1", b"x", qos=1)
            return len((await node.api.get("/clients/c/acl_cache")).data)

        for words in (("c",), ("all",), ("node", node.name)):
            assert await cached() > 0
            assert await done(node, "acl", "cache-clean", *words) == ["ACL cache drain start OK"]
            assert (await node.api.get("/clients/c/acl_cache")).data == []
        assert await refused(node, "acl", "cache-clean", "nobody") == "client nobody: not found"
        said = await ctl(node, "acl", "cache-clean", "node", "nobody@nowhere")
        assert said.status == 1 and said.out.startswith("error: node nobody@nowhere: no ")


async def test_banned() -> None:
    async with managed_node() as node:
        assert await done(node, "banned", "list") == []
        now = int(node.clock.now())
        command = ("banned", "add", "clientid", "bad", "--reason", "flood", "--seconds", "60")
        assert await done(node, *command) == ["ok"]
        (row,) = await ctl_json(node, "banned", "list")
        assert row["until"] - row["at"] in (60, 61) and now <= row["at"] <= now + 5
        until = f"until={row['until']}, kick=true)"
        assert await done(node, "banned", "list") == [
            f"Banned(as=clientid, who=bad, by=taipan-ctl, reason=flood, at={row['at']}, {until}"
        ]
        with pytest.raises(AssertionError):
            await node.client("bad", 4)
        assert await done(node, "banned", "del", "clientid", "bad") == ["ok"]
        await node.client("bad", 4)
        assert await refused(node, "banned", "del", "clientid", "bad") == "ban clientid bad: not found"
        client = await node.client("stays", username="ann", password=b"x")
        assert await done(node, "banned", "add", "clientid", "stays", "--kick", "false") == ["ok"]
        assert await done(node, "banned", "add", "username", "ann") == ["ok"]
        await client.ping()
        assert await done(node, "banned", "add", "username", "ann", "--kick", "true") == ["ok"]
        await client.expect_disconnect(0x98)
        for bad in (("shoe", "x"), ("peerhost", "nowhere"), ("clientid", "x", "--seconds", "-1")):
            said = await ctl(node, "banned", "add", *bad)
            assert said.status == 1 and said.out.startswith("error: ")


@pytest.mark.parametrize("command", ["users", "mqtt-user", "user", "clientid"])
async def test_who_adds_the_first_user_is_told_whom_that_shuts_out(command: str) -> None:
    async with managed_node() as node:
        first = await ctl(node, command, "add", "eve", "secret")
        ok, line = first.out.splitlines()
        assert (first.status, ok) == (0, "ok")
        assert line.startswith("Warning: this is the first user: ") and "access.unknown_user" in line
        assert await ctl(node, command, "add", "bob", "secret") == (0, "ok\n", "")
    async with managed_node(access={"unknown_user": "anonymous"}) as node:
        assert await ctl(node, command, "add", "eve", "secret") == (0, "ok\n", "")
    async with managed_node() as node:
        said = await ctl_json(node, command, "add", "eve", "secret")
        assert "access.unknown_user" in said["warning"]
