"""Users and rules in a directory: hashes, binds, names that would be filters, groups, TLS, and a server that hangs."""

import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taipan.broker.access.connection_trial import tried_sources
from taipan.broker.access.control import AccessControl
from taipan.broker.access.registry import ACCESS_SOURCES
from tests.broker.access.sources.ldap import server_of_tests, settings_of, ssha
from tests.broker.access.test_sources import client, control, decision, log_in
from tests.support.node import free_port
from tests.systems.servers.slapd import SUFFIX, user

DECLARED = next(source for source in ACCESS_SOURCES if source.name == "ldap")


@asynccontextmanager
async def asked(entries: str = "", **settings: Any) -> AsyncIterator[AccessControl]:
    server = server_of_tests()
    server.clear()
    if entries:
        server.change("add", entries)
    access = control({"guesses": 10_000, "ldap": settings_of(server, **settings)}, DECLARED)
    access.start()
    try:
        yield access
    finally:
        await access.stop()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


HASHES = {
    "SSHA": ssha("right"),
    "ssha, in small letters": ssha("right").replace("SSHA", "ssha"),
    "SHA": "{SHA}" + _base64(hashlib.sha1(b"right").digest()),
    "MD5": "{MD5}" + _base64(hashlib.md5(b"right").digest()),
    "SMD5": "{SMD5}" + _base64(hashlib.md5(b"rightsalt").digest() + b"salt"),
    "SHA256": "{SHA256}" + _base64(hashlib.sha256(b"right").digest()),
    "SSHA512": "{SSHA512}" + _base64(hashlib.sha512(b"rightpepper").digest() + b"pepper"),
    "all of it in Base64": _base64(ssha("right").encode()),
    "CRYPT": "",
}
REFUSED = {
    "in clear": "right",
    "unknown": "{ARGON2}$argon2i$v=19",
    "no Base64": "{SSHA}!!!",
    "too short": "{SHA256}" + _base64(b"right"),
    "without salt": "{SSHA}" + _base64(hashlib.sha1(b"right").digest()),
    "crypt of another kind": "{CRYPT}$6$salt$hash",
}


@pytest.mark.parametrize("form", HASHES)
@pytest.mark.asyncio
async def test_hashes(form: str) -> None:
    stored = HASHES[form]
    if form == "CRYPT":
        import bcrypt

        stored = "{CRYPT}" + bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    async with asked(user("ann", stored)) as access:
        for _ in range(2):
            assert (await log_in(access, client(), b"right")).proved_by == "ldap"
            wrong = await log_in(access, client(), b"wrong")
            assert (wrong.reason_code, wrong.setting) == (0x86, "access.ldap.custom_base_dn")
        assert (await log_in(access, client(), b"")).reason_code == 0x86
        unknown = await log_in(access, client("bob"), b"right")
        assert unknown.reason_code == 0x86 and unknown.setting != wrong.setting  # the next source is asked


@pytest.mark.parametrize("form", REFUSED)
@pytest.mark.asyncio
async def test_passwords_that_nobody_can_verify_are_refused(form: str) -> None:
    async with asked(user("ann", REFUSED[form])) as access:
        for password in (b"right", b"wrong", REFUSED[form].encode()):
            refused = await log_in(access, client(), password)
            assert (refused.reason_code, refused.proved_by) == (0x86, "")


@pytest.mark.asyncio
async def test_the_directory_verifies_a_password_by_a_bind() -> None:
    """An empty one is not sent: a bind without a password succeeds for everybody (RFC 4513, 5.1.2)."""
    entries = user("ann", "right") + user("bob", "") + user("cam", "right", "isEnabled: FALSE")
    async with asked(entries, bind_as_user=True, bind_dn="", bind_password="", timeout=1.0) as access:
        for _ in range(2):
            assert (await log_in(access, client(), b"right")).proved_by == "ldap"
            for name, password in (("ann", b"wrong"), ("ann", b""), ("bob", b""), ("bob", b"x"), ("cam", b"right")):
                refused = await log_in(access, client(name), password)
                assert (refused.reason_code, refused.setting) == (0x86, "access.ldap.custom_base_dn"), (name, password)
        server_of_tests().pause()
        try:
            assert (await log_in(access, client(), b"right")).detail == "ldap_timeout"
        finally:
            server_of_tests().resume()
    # The directory hides passwords from whoever is not logged in; without bind_as_user, there is none to compare.
    async with asked(entries, bind_dn="", bind_password="") as access:
        assert (await log_in(access, client(), b"right")).reason_code == 0x86


@pytest.mark.asyncio
async def test_users_that_are_disabled() -> None:
    entries = user("ann", ssha("right"), "isEnabled: FALSE", "mqttPubSubTopic: open")
    entries += user("bob", ssha("right"), "isEnabled: TRUE", "mqttPubSubTopic: open")
    async with asked(entries, superuser_group=f"cn=admins,ou=groups,{SUFFIX}") as access:
        assert (await log_in(access, client(), b"right")).reason_code == 0x86
        assert (await log_in(access, client("bob"), b"right")).reason_code == 0
        who = client()
        who.proved_by = "ldap"  # connected before
        denied = await decision(access, who, "open")
        assert not denied.allowed and not denied.ignored


NAMES = [
    "ANN",
    " ann",
    "*",
    "ann*",
    "ann)(uid=*",
    "ann,ou=device",
    f"ann,ou=device,{SUFFIX}",
    "ann\\",
    "\\61nn",
    "ann+cn=x",
    "#",
    "\0",
]


@pytest.mark.parametrize("bind_as_user", [False, True])
@pytest.mark.asyncio
async def test_names_that_would_be_filters_or_names_of_entries(bind_as_user: bool) -> None:
    """Nobody is found by them, in a name and in a condition; a name that needs escapes is. A directory ignores the
    difference between ANN and ann, but the rules of a broker do not."""
    odd = 'Zoë "x", <y>=#+;\\z'
    escaped = "".join(f"\\{byte:02x}" for byte in odd.encode())
    encoded = _base64(odd.encode())
    entries = user("ann", ssha("right")) + (
        f"dn: uid={escaped},ou=device,{SUFFIX}\nobjectClass: mqttUser\nobjectClass: mqttDevice\n"
        f"objectClass: mqttSecurity\nuid:: {encoded}\nuserPassword: {ssha('right')}\n\n"
    )
    filters = [{"key": "objectClass", "value": "mqttUser"}, {"key": "${username_attr}", "value": "${user}"}]
    for more in ({}, {"custom_base_dn": "${device_dn}", "filters": filters}):
        async with asked(entries, bind_as_user=bind_as_user, **more) as access:
            for name in NAMES:
                found = await log_in(access, client(name), b"right")
                assert (found.reason_code, found.proved_by, found.detail) == (0x86, "", "no_source_knows_it"), name
            assert (await log_in(access, client(odd), b"right")).proved_by == "ldap"
            assert (await log_in(access, client(), b"right")).proved_by == "ldap"


@pytest.mark.asyncio
async def test_topics_of_users_and_groups() -> None:
    entries = user(
        "ann", ssha("right"), "mqttPublishTopic: out/%c", "mqttSubscriptionTopic: in/+", "mqttPubSubTopic: x/#"
    )
    group = "dn: cn={0},ou=groups," + SUFFIX + "\nobjectClass: {1}\nobjectClass: mqttUser\ncn: {0}\n{2}\n\n"
    ann = f"uid=ann,ou=device,{SUFFIX}"
    entries += group.format("pumps", "groupOfNames", f"member: {ann}\nmqttPubSubTopic: pumps/#")
    entries += group.format("nis", "posixGroup", "gidNumber: 1\nmemberUid: ann\nmqttPublishTopic: nis")
    entries += group.format("others", "groupOfNames", f"member: uid=bob,ou=device,{SUFFIX}\nmqttPubSubTopic: others")
    for groups in ("", f"ou=groups,{SUFFIX}"):
        async with asked(entries, groups_dn=groups) as access:
            who = client()
            await log_in(access, who, b"right")
            for action, topic, allowed in (
                ("publish", "out/c", True), ("publish", "out/d", False), ("subscribe", "out/c", False),
                ("subscribe", "in/+", True), ("subscribe", "in/#", False), ("publish", "in/1", False),
                ("publish", "x/1", True), ("subscribe", "x/#", True), ("subscribe", "#", False),
                ("publish", "pumps/1", bool(groups)), ("publish", "nis", bool(groups)), ("publish", "others", False),
            ):  # fmt: skip
                (told,) = await access.authorization.ask(who, action, [topic])
                assert told.allowed == allowed and told.ignored != allowed, (action, topic)
            gone = client("bob")
            gone.proved_by = "ldap"
            assert (await decision(access, gone, "x/1")).ignored


@pytest.mark.asyncio
async def test_superusers_are_members_of_a_group() -> None:
    dn = f"cn=admins,ou=groups,{SUFFIX}"
    entries = user("ann", ssha("right")) + user("bob", ssha("right"))
    group = f"dn: {dn}\nobjectClass: groupOfUniqueNames\ncn: admins\nuniqueMember: uid=ann,ou=device,{SUFFIX}\n"
    async with asked(entries + group, superuser_group=dn) as access:
        assert (await log_in(access, client(), b"right")).is_superuser
        assert not (await log_in(access, client("bob"), b"right")).is_superuser
    async with asked(entries, superuser_group=dn) as access:  # there is no such group
        assert not (await log_in(access, client(), b"right")).is_superuser


@pytest.mark.asyncio
async def test_conditions() -> None:
    entries = user("ann", ssha("right"), "description: a") + user("bob", ssha("right"), "description: b")
    entries = entries.replace("objectClass: mqttUser\n", "objectClass: mqttUser\nobjectClass: extensibleObject\n")
    either = [
        {"key": "description", "value": "a", "op": "or"},
        {"key": "description", "value": "b"},
        {"key": "objectClass", "value": "mqttSecurity"},
    ]
    both = [{"key": "objectClass", "value": "mqttUser"}, {"key": "description", "value": "a"}]
    for filters, names in ((either, "ann bob"), (both, "ann"), ([], "ann bob")):
        async with asked(entries, filters=filters) as access:
            for name in ("ann", "bob"):
                found = await log_in(access, client(name), b"right")
                assert (found.proved_by == "ldap") == (name in names), (filters, name)
    async with asked(entries, match_objectclass="person") as access:
        assert (await log_in(access, client(), b"right")).proved_by == ""


@pytest.mark.asyncio
async def test_several_entries_and_searches_that_are_refused() -> None:
    entries = user("ann", ssha("right")) + user("bob", ssha("right"))
    filters = [{"key": "objectClass", "value": "mqttUser", "op": "or"}, {"key": "uid", "value": "${user}"}]
    async with asked(entries, custom_base_dn="${device_dn}", filters=filters) as access:
        refused = await log_in(access, client(), b"right")
        assert (refused.reason_code, refused.detail) == (0x88, "ldap_several_rows")
    async with asked(entries, device_dn="no name") as access:
        refused = await log_in(access, client(), b"right")
        assert (refused.reason_code, refused.detail) == (0x88, "ldap_query")
        assert (await log_in(access, client(), b"right")).detail == "ldap_query"  # over the same connection
    two = user("ann", ssha("right"), f"userPassword: {ssha('other')}")
    async with asked(two) as access:
        refused = await log_in(access, client(), b"right")
        assert (refused.reason_code, refused.detail) == (0x88, "ldap_bad_row")
    async with asked(entries, device_dn=f"ou=none,{SUFFIX}") as access:  # there is no such entry
        assert (await log_in(access, client(), b"right")).reason_code == 0x86


@pytest.mark.asyncio
async def test_a_server_that_hangs_and_continues() -> None:
    async with asked(user("ann", ssha("right")), timeout=0.3, connect_timeout=0.3) as access:
        assert (await log_in(access, client(), b"right")).reason_code == 0
        server_of_tests().pause()
        try:
            for _ in range(3):
                refused = await log_in(access, client(), b"right")
                assert (refused.reason_code, refused.detail) == (0x88, "ldap_timeout")
        finally:
            server_of_tests().resume()
        assert (await log_in(access, client(), b"right")).reason_code == 0


@pytest.mark.asyncio
async def test_a_wrong_password_of_the_directory_and_a_server_that_restarts() -> None:
    async with asked(user("ann", ssha("right")), bind_password="other") as access:
        refused = await log_in(access, client(), b"right")
        assert (refused.reason_code, refused.detail) == (0x88, "ldap_no_connection")
        (told,) = (await tried_sources(access.settings)).values()
        assert told == "no_connection: bind_dn or bind_password is wrong"
    async with asked(user("ann", ssha("right"))) as access:
        assert (await log_in(access, client(), b"right")).reason_code == 0
        server_of_tests().restart()
        assert (await log_in(access, client(), b"right")).reason_code == 0


@pytest.mark.asyncio
async def test_the_first_server_that_can_be_reached_is_asked() -> None:
    server = server_of_tests()
    servers = f"127.0.0.1:{free_port()}, 127.0.0.1:{server.port}"
    async with asked(user("ann", ssha("right")), servers=servers, port=389) as access:
        assert (await log_in(access, client(), b"right")).reason_code == 0
