"""/auth_clientid and /auth_username: users as EMQX 4.4 has them. Passwords are never shown."""

from typing import Any

import msgspec

from broker.access.stored_users import CLIENT_ID, USERNAME

from ..http.reading import PageQuery
from ..http.routes import Call, OnDemand, OrEmpty, Routes
from ..operations.users import NewUser, account_record
from .auth_user import Name, Password

routes = Routes("Users of EMQX 4.4")


class ClientIdQuery(PageQuery, kw_only=True):
    clientid: str | None = None
    like: str | None = msgspec.field(default=None, name="_like_clientid")


class UsernameQuery(PageQuery, kw_only=True):
    username: str | None = None
    like: str | None = msgspec.field(default=None, name="_like_username")


class ClientIdAccount(msgspec.Struct):
    clientid: str
    created_at: int


class UsernameAccount(msgspec.Struct):
    username: str
    created_at: int


class NewClientId(msgspec.Struct):
    clientid: Name
    password: Password


class NewUsername(msgspec.Struct):
    username: Name
    password: Password


class PasswordUpdate(msgspec.Struct):
    password: Password


@routes.get("/auth_clientid", "Users by client identifier", query=ClientIdQuery, reply=list[ClientIdAccount])
def list_auth_clientid(call: Call) -> Any:
    return _listing(call, CLIENT_ID, call.query.clientid)


@routes.get("/auth_username", "Users by user name", query=UsernameQuery, reply=list[UsernameAccount])
def list_auth_username(call: Call) -> Any:
    return _listing(call, USERNAME, call.query.username)


@routes.get("/auth_clientid/{clientid}", "A user by client identifier", reply=OrEmpty(ClientIdAccount))
def lookup_auth_clientid(call: Call) -> Any:
    return _lookup(call, CLIENT_ID)


@routes.get("/auth_username/{username}", "A user by user name", reply=OrEmpty(UsernameAccount))
def lookup_auth_username(call: Call) -> Any:
    return _lookup(call, USERNAME)


@routes.post(
    "/auth_clientid",
    "Add users by client identifier",
    body=list[NewClientId] | NewClientId,
    reply=OnDemand(dict[str, str]),
)
async def add_auth_clientid(call: Call) -> Any:
    return await _add(call, CLIENT_ID)


@routes.post(
    "/auth_username",
    "Add users by user name",
    body=list[NewUsername] | NewUsername,
    reply=OnDemand(dict[str, str]),
)
async def add_auth_username(call: Call) -> Any:
    return await _add(call, USERNAME)


@routes.put("/auth_clientid/{clientid}", "Change a password", body=PasswordUpdate)
async def update_auth_clientid(call: Call) -> Any:
    await call.operations.users.update(call.path[CLIENT_ID], call.body.password, kind=CLIENT_ID)


@routes.put("/auth_username/{username}", "Change a password", body=PasswordUpdate)
async def update_auth_username(call: Call) -> Any:
    await call.operations.users.update(call.path[USERNAME], call.body.password, kind=USERNAME)


@routes.delete("/auth_clientid/{clientid}", "Remove a user by client identifier")
async def delete_auth_clientid(call: Call) -> Any:
    await call.operations.users.delete(call.path[CLIENT_ID], kind=CLIENT_ID)


@routes.delete("/auth_username/{username}", "Remove a user by user name")
async def delete_auth_username(call: Call) -> Any:
    await call.operations.users.delete(call.path[USERNAME], kind=USERNAME)


def _listing(call: Call, kind: str, exact: str | None) -> Any:
    query = call.query
    limit = query.rows(call.operations.settings.max_row_limit)
    return call.operations.users.accounts(kind, query.page, limit, exact, query.like)


def _lookup(call: Call, kind: str) -> Any:
    user = call.operations.users.lookup(call.path[kind], kind)
    return account_record(user) if user is not None else {}


async def _add(call: Call, kind: str) -> Any:
    """An array is answered by name; one alone by success or refusal."""
    if isinstance(call.body, list):
        return await call.operations.users.add([_new(each, kind) for each in call.body], kind)
    await call.operations.users.add_one(_new(call.body, kind), kind)
    return None


def _new(given: NewClientId | NewUsername, kind: str) -> NewUser:
    return NewUser(getattr(given, kind), given.password)
