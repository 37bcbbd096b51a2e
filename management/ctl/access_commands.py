"""The commands users, acl, banned and access-sources, and their older names: credentials, access rules, bans, and the
sources that decide."""

from itertools import chain
from typing import cast

import msgspec

from taipan.broker.access.stored.rules import ALL, ANONYMOUS, KINDS, NAMELESS, PUB, PUBSUB, SUB
from taipan.broker.access.stored.users import CLIENT_ID, USERNAME

from ..operations.access_sources import AccessSourceRecord
from ..operations.acl import AclRecord, Action, HalfRecord, NewAclRule, Subject, rule_record, subject_of
from ..operations.banned import BanRecord
from ..operations.listing import EVERYTHING, everything
from ..operations.refusal import EXISTS, NO_USER, NOT_ONLINE, Refusal
from ..operations.times import LATEST
from ..operations.users import NewUser, login_record
from .command import (
    EXISTS_ALREADY,
    NOT_FOUND,
    OK,
    CommandCall,
    CommandResult,
    Commands,
    finding,
    not_found,
    telling,
    told,
    word,
)

commands = Commands()


# users; mqtt-user is its name in EMQX 4.2


async def _add_login(call: CommandCall) -> CommandResult:
    superuser = call.get("IsSuperuser") is not None and call.flag("IsSuperuser")
    return await _added(call, NewUser(call["Login"], call["Password"], superuser), USERNAME)


async def _added(call: CommandCall, user: NewUser, kind: str) -> CommandResult:
    users = call.operations.users
    warning = await users.first_user()
    with telling(_account_words):
        await users.add_one(user, kind)
    return _with_warning(warning, users.default_passwords([user]))


def _with_warning(*warnings: str | None) -> CommandResult:
    warning = "; ".join(filter(None, warnings))
    if not warning:
        return CommandResult(None, OK)
    return CommandResult({"warning": warning}, lambda answer: [OK, f"Warning: {answer['warning']}"])


async def _update_login(call: CommandCall) -> CommandResult:
    superuser = None if call.get("IsSuperuser") is None else call.flag("IsSuperuser")
    user = NewUser(call["Login"], call["Password"])
    with telling(_account_words):
        await call.operations.users.update(user, superuser)
    return _with_warning(call.operations.users.default_passwords([user]))


async def _delete_login(call: CommandCall) -> CommandResult:
    with telling(_account_words):
        await call.operations.users.delete(call["Login"])
    return CommandResult(None, OK)


def _list_logins(call: CommandCall) -> CommandResult:
    return CommandResult(
        call.operations.users.listing(1, EVERYTHING), lambda row: f"User(login = {_quoted(row.login)})"
    )


def _show_login(call: CommandCall) -> CommandResult:
    user = call.operations.users.lookup(call["Login"])
    if user is None:
        raise not_found(f"user {call['Login']}", NO_USER)
    return CommandResult(
        login_record(user),
        lambda row: f"User(login = {_quoted(row.login)} is_super = {word(row.is_superuser)})",
    )


for _noun, _kind in (("users", "user"), ("mqtt-user", "user (as in EMQX 4.2)")):
    commands.add(f"{_noun} list", f"List {_kind.replace('user', 'users', 1)}")(_list_logins)
    commands.add(f"{_noun} show <Login>", f"Show a {_kind}")(_show_login)
    commands.add(f"{_noun} add <Login> <Password> [<IsSuperuser>]", f"Add a {_kind}")(_add_login)
    commands.add(f"{_noun} update <Login> <Password> [<IsSuperuser>]", f"Change a {_kind}")(_update_login)
    commands.add(f"{_noun} del <Login>", f"Delete a {_kind}")(_delete_login)


# user, clientid: as in EMQX 4.3 and later


def _accounts(noun: str, kind: str, name: str, what: str) -> None:
    def list_accounts(call: CommandCall) -> CommandResult:
        return CommandResult(call.operations.users.records(kind, 1, EVERYTHING), lambda row: str(row.name))

    async def add_account(call: CommandCall) -> CommandResult:
        return await _added(call, NewUser(call[name], call["Password"]), kind)

    async def update_account(call: CommandCall) -> CommandResult:
        user = NewUser(call[name], call["NewPassword"])
        with telling(_account_words):
            await call.operations.users.update(user, kind=kind)
        return _with_warning(call.operations.users.default_passwords([user]))

    async def delete_account(call: CommandCall) -> CommandResult:
        with telling(_account_words):
            await call.operations.users.delete(call[name], kind)
        return CommandResult(None, OK)

    commands.add(f"{noun} list", f"List users {what}")(list_accounts)
    commands.add(f"{noun} add <{name}> <Password>", f"Add a user {what}")(add_account)
    commands.add(f"{noun} update <{name}> <NewPassword>", f"Change the password of a user {what}")(update_account)
    commands.add(f"{noun} del <{name}>", f"Delete a user {what}")(delete_account)


_accounts("user", USERNAME, "Username", "by username")
_accounts("clientid", CLIENT_ID, "ClientId", "by client ID")


def _account_words(refusal: Refusal) -> str | None:
    return {EXISTS: EXISTS_ALREADY, NO_USER: NOT_FOUND}.get(refusal.code)


# acl, as in EMQX 4.3 and later


@commands.add(
    "acl list [<Kind>]", "List all access rules, or those of one kind: clientid, username, _anonymous or _all"
)
def list_rules(call: CommandCall) -> CommandResult:
    acl = call.operations.acl
    if call.get("Kind") is not None:
        kind = call.choice("Kind", CLIENT_ID, USERNAME, "_anonymous", "_all").removeprefix("_")
        return CommandResult(acl.halves_listing(kind, 1, EVERYTHING), _half_line)
    listings = [acl.halves_listing(kind, 1, EVERYTHING) for kind in KINDS]
    return CommandResult(everything(chain.from_iterable(listings), lambda record: record), _half_line)


def _subject_commands(words: str, name: str, kind: str) -> None:
    def subject(call: CommandCall) -> Subject:
        return kind, call[name] if name else ""

    def show(call: CommandCall) -> CommandResult:
        if not call.operations.acl.has(subject(call)):
            raise not_found(f"access rule of {words} {subject(call)[1]}".rstrip())
        return CommandResult(call.operations.acl.halves_of(subject(call)), _half_line)

    async def add(call: CommandCall) -> CommandResult:
        action = _action(call)
        allow = _one_of(call, "Access", "allow", "deny") == "allow"
        await call.operations.acl.add_first([NewAclRule(subject(call), call["Topic"], action, allow)])
        return CommandResult(None, OK)

    async def delete(call: CommandCall) -> CommandResult:
        with finding():
            await call.operations.acl.delete_of(subject(call), call["Topic"])
        return CommandResult(None, OK)

    who = f" <{name}>" if name else ""
    commands.add(f"acl show {words}{who}", f"Show the access rules of {_of(kind)}")(show)
    commands.add(
        f"acl add {words}{who} <Topic> <Action> <Access>",
        f"Add a rule for {_of(kind)}; Action: pub, sub or pubsub; Access: allow or deny",
    )(add)
    commands.add(f"acl del {words}{who} <Topic>", f"Delete the access rules of {_of(kind)} for a topic")(delete)


def _of(kind: str) -> str:
    words = {CLIENT_ID: "a client ID", USERNAME: "a username", ANONYMOUS: "anonymous clients"}
    return words.get(kind, "every client")


_subject_commands("clientid", "ClientId", CLIENT_ID)
_subject_commands("username", "Username", USERNAME)
_subject_commands("_anonymous", "", ANONYMOUS)
_subject_commands("_all", "", ALL)


@commands.add("acl cache-clean <ClientId>", "Clear the ACL cache of a client, or of all clients (all)")
async def clean_cache(call: CommandCall) -> CommandResult:
    who = call["ClientId"]
    if who == "all":
        await call.operations.clients.clean_all_acl_caches()
    else:
        with finding(NOT_ONLINE):
            await call.operations.clients.clean_acl_cache(who)
    return CommandResult(None, "ACL cache drain start OK")


@commands.add("acl cache-clean node <Node>", "Clear the ACL cache of every client on a node")
async def clean_cache_of_node(call: CommandCall) -> CommandResult:
    await call.operations.calls.on(call["Node"], call.operations.clients.clean_acl_caches)
    return CommandResult(None, "ACL cache drain start OK")


# mqtt-acl, as in EMQX 4.2


@commands.add("mqtt-acl list", "List the access rules by login, in the EMQX 4.2 form")
def list_login_rules(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.acl.listing(1, EVERYTHING), _login_rule_line)


@commands.add("mqtt-acl show <Login>", "Show the access rules of a login ($all: every client) in the order they apply")
def show_login_rules(call: CommandCall) -> CommandResult:
    rules = call.operations.acl.lookup(call["Login"])
    if not rules:
        raise not_found(f"access rule of {call['Login']}")
    return CommandResult(everything(rules, rule_record), _login_rule_line)


@commands.add(
    "mqtt-acl add <Login> <Topic> <Action> <Allow>", "Add a rule; Action: pub, sub or pubsub; Allow: true or false"
)
async def add_login_rule(call: CommandCall) -> CommandResult:
    action = _action(call)
    allow = _one_of(call, "Allow", "true", "false") == "true"
    idle = await call.operations.acl.add([NewAclRule(subject_of(call["Login"]), call["Topic"], action, allow)])
    why = "ok, without effect: a rule of this topic before it decides the other way; remove that one first"
    return CommandResult(None, why if idle else OK)


@commands.add("mqtt-acl del <Login> <Topic>", "Delete the rules of a login for a topic")
async def delete_login_rules(call: CommandCall) -> CommandResult:
    with finding():
        await call.operations.acl.delete(call["Login"], call["Topic"])
    return CommandResult(None, OK)


def _action(call: CommandCall) -> Action:
    return cast(Action, _one_of(call, "Action", PUB, SUB, PUBSUB))


def _one_of(call: CommandCall, name: str, *allowed: str) -> str:
    return call.choice(name, *allowed)


def _half_line(row: HalfRecord) -> str:
    who = row.name if row.kind in NAMELESS else f"{row.kind} = {_quoted(row.name)}"
    where = f" listener = {row.listener}" if row.listener else ""
    return f"Acl({who} topic = {_quoted(row.topic)} action = {row.action} access = {row.access}{where})"


def _login_rule_line(row: AclRecord) -> str:
    login, topic = _quoted(row.login), _quoted(row.topic)
    where = f" listener = {row.listener}" if row.listener else ""
    return f"Acl(login = {login} topic = {topic} action = {row.action} allow = {word(row.allow)}{where})"


# banned


@commands.add("banned list", "List the bans")
def list_banned(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.banned.listing(1, EVERYTHING), _ban_line)


def _ban_line(row: BanRecord) -> str:
    facts = ", ".join(f"{key}={told(value)}" for key, value in msgspec.to_builtins(row).items())
    return f"Banned({facts})"


@commands.add(
    "banned add <As> <Who> [--reason <R>] [--seconds <S>] [--kick <Kick>]",
    "Ban a clientid, username or peerhost (As), for 300 seconds by default; --kick true also ends sessions",
)
async def add_banned(call: CommandCall) -> CommandResult:
    until = None
    if call.get("S") is not None:
        now = int(call.operations.server.clock.wall())
        until = now + call.integer("S", 1, LATEST - now)
    kick = None if call.get("Kick") is None else call.flag("Kick")
    reason = call.get("R") or ""
    await call.operations.banned.add(call["As"], call["Who"], "taipan-ctl", reason, None, until, kick)
    return CommandResult(None, OK)


@commands.add("banned del <As> <Who>", "Delete a ban")
async def delete_banned(call: CommandCall) -> CommandResult:
    if not await call.operations.banned.delete(call["As"], call["Who"]):
        raise not_found(f"ban of {call['As']} {call['Who']}")
    return CommandResult(None, OK)


def _quoted(text: str) -> str:
    """Return the text in quotation marks, because names may contain blanks and brackets."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@commands.add("access-sources list", "List the sources that authenticate and authorize clients, with their status")
def list_access_sources(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.access_sources.records(), lambda rows: [_source_line(row) for row in rows])


def _source_line(row: AccessSourceRecord) -> str:
    places = f"authenticates={told(row.authenticates)}, authorizes={told(row.authorizes)}"
    remote = row.remote
    if remote is None:
        return f"AccessSource({row.source}, {places})"
    return (
        f"AccessSource({row.source}, {places}, status={remote.status}, breaker={remote.breaker}, "
        f"latency={told(remote.latency)}, failed={remote.failed}, reason={remote.reason})"
    )
