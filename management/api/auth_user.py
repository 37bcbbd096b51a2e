"""/auth_user: users by username, which EMQX 4.1 calls the login."""

from typing import Literal

import msgspec

from ..http.envelope import Extra
from ..http.routes import Call, Empty, Endpoints, OnDemand, OrEmpty
from ..operations.listing import Listing, PageQuery
from ..operations.users import LoginRecord, login_record
from .credentials import Credentials, Name, add_users, update_user

routes = Endpoints("Authentication users")


class NewLogin(Credentials, kw_only=True):
    login: Name
    is_superuser: bool


class LoginUpdate(Credentials, kw_only=True):
    is_superuser: bool


class RequestState(msgspec.Struct):
    """``data``: the answer, if ``state`` is ``done``; ``message``: the reason, if it is ``failed``."""

    state: Literal["running", "done", "failed"]
    users: int
    done: int
    data: dict[str, str] | None = None
    passwords: dict[str, str] | None = None
    warning: str | None = None
    message: str | None = None


@routes.get("/auth_user", "Users by username", query=PageQuery, reply=list[LoginRecord])
def list_auth_user(call: Call) -> Listing[LoginRecord]:
    limit = call.query.rows(call.operations.settings.max_row_limit)
    return call.operations.users.listing(call.query.page, limit)


@routes.get("/auth_user/{login}", "A user", reply=OrEmpty(LoginRecord))
def lookup_auth_user(call: Call) -> LoginRecord | Empty:
    user = call.operations.users.lookup(call.path["login"])
    return login_record(user) if user is not None else {}


@routes.post("/auth_user", "Add users", body=list[NewLogin] | NewLogin, reply=dict[str, str])
async def add_auth_user(call: Call) -> Extra:
    given = call.body if isinstance(call.body, list) else [call.body]
    return await add_users(call, [(each.login, each, each.is_superuser) for each in given])


@routes.get(
    "/auth_user_requests/{key}",
    "The result of the request with this Idempotency-Key",
    reply=RequestState,
)
def lookup_auth_user_request(call: Call) -> dict[str, object]:
    state = call.operations.user_requests.state(call.path["key"])
    answer = state.get("data")
    if answer is not None:
        state |= {"data": answer.data, **answer.members}
    return state


@routes.put("/auth_user/{login}", "Change a user", body=LoginUpdate, reply=OnDemand(dict[str, str]))
async def update_auth_user(call: Call) -> Extra | None:
    return await update_user(call, call.path["login"], call.body.is_superuser)


@routes.delete("/auth_user/{login}", "Delete a user")
async def delete_auth_user(call: Call) -> None:
    await call.operations.users.delete(call.path["login"])
