"""/auth_clientid and /auth_username: users in the form of EMQX 4.4. Passwords are never shown."""

import msgspec

from taipan.broker.access.stored.users import CLIENT_ID, USERNAME

from ..http.envelope import Extra
from ..http.routes import Call, Empty, Endpoints, OnDemand, OrEmpty
from ..operations.listing import Listing, PageQuery
from ..operations.refusal import EXISTS, Refusal
from ..operations.users import OK, ClientIdUserRecord, UsernameUserRecord, UserRecord, user_record
from .credentials import Credentials, Name, add_users, update_user

routes = Endpoints("Users of EMQX 4.4")


class ClientIdUsersQuery(PageQuery, kw_only=True):
    clientid: str | None = None
    like: str | None = msgspec.field(default=None, name="_like_clientid")


class UsernameUsersQuery(PageQuery, kw_only=True):
    username: str | None = None
    like: str | None = msgspec.field(default=None, name="_like_username")


class NewClientId(Credentials, kw_only=True):
    clientid: Name


class NewUsername(Credentials, kw_only=True):
    username: Name


@routes.get("/auth_clientid", "Users by client ID", query=ClientIdUsersQuery, reply=list[ClientIdUserRecord])
def list_auth_clientid(call: Call) -> Listing[UserRecord]:
    return _listing(call, CLIENT_ID, call.query.clientid)


@routes.get("/auth_username", "Users by username", query=UsernameUsersQuery, reply=list[UsernameUserRecord])
def list_auth_username(call: Call) -> Listing[UserRecord]:
    return _listing(call, USERNAME, call.query.username)


@routes.get("/auth_clientid/{clientid}", "A user by client ID", reply=OrEmpty(ClientIdUserRecord))
def lookup_auth_clientid(call: Call) -> UserRecord | Empty:
    return _lookup(call, CLIENT_ID)


@routes.get("/auth_username/{username}", "A user by username", reply=OrEmpty(UsernameUserRecord))
def lookup_auth_username(call: Call) -> UserRecord | Empty:
    return _lookup(call, USERNAME)


@routes.post(
    "/auth_clientid",
    "Create users by client ID",
    body=list[NewClientId] | NewClientId,
    reply=OnDemand(dict[str, str]),
)
async def add_auth_clientid(call: Call) -> Extra:
    return await _add(call, CLIENT_ID)


@routes.post(
    "/auth_username",
    "Create users by username",
    body=list[NewUsername] | NewUsername,
    reply=OnDemand(dict[str, str]),
)
async def add_auth_username(call: Call) -> Extra:
    return await _add(call, USERNAME)


@routes.put("/auth_clientid/{clientid}", "Change a password", body=Credentials, reply=OnDemand(dict[str, str]))
async def update_auth_clientid(call: Call) -> Extra | None:
    return await update_user(call, call.path[CLIENT_ID], None, CLIENT_ID)


@routes.put("/auth_username/{username}", "Change a password", body=Credentials, reply=OnDemand(dict[str, str]))
async def update_auth_username(call: Call) -> Extra | None:
    return await update_user(call, call.path[USERNAME], None)


@routes.delete("/auth_clientid/{clientid}", "Delete a user by client ID")
async def delete_auth_clientid(call: Call) -> None:
    await call.operations.users.delete(call.path[CLIENT_ID], kind=CLIENT_ID)


@routes.delete("/auth_username/{username}", "Delete a user by username")
async def delete_auth_username(call: Call) -> None:
    await call.operations.users.delete(call.path[USERNAME], kind=USERNAME)


def _listing(call: Call, kind: str, exact: str | None) -> Listing[UserRecord]:
    query = call.query
    limit = query.rows(call.operations.settings.max_row_limit)
    return call.operations.users.records(kind, query.page, limit, exact, query.like)


def _lookup(call: Call, kind: str) -> UserRecord | Empty:
    user = call.operations.users.lookup(call.path[kind], kind)
    return user_record(user) if user is not None else {}


async def _add(call: Call, kind: str) -> Extra:
    """Add one user or an array of users. For an array, the answer has the result by name; for one user, it is success
    or refusal."""
    body = call.body
    given = body if isinstance(body, list) else [body]
    answer = await add_users(call, [(getattr(each, kind), each, False) for each in given], kind)
    if isinstance(body, list):
        return answer
    name = getattr(body, kind)
    if answer.data[name] != OK:
        raise Refusal(EXISTS, f"{name} already exists")
    return Extra(None, **answer.members)
