"""/auth, /users and /change_pwd: the users of the dashboard, and their logins."""

from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from ..http.envelope import json_response
from ..http.protocol import connection_of
from ..http.routes import Call, Endpoints, OnDemand
from ..http.session_cookie import drop_token, set_token
from ..operations.caller import ADMINISTRATOR, OPENID, Caller
from ..operations.dashboard_users import MAX_TAGS_LENGTH, DashboardUserRecord
from ..operations.refusal import Forbidden

routes = Endpoints("Dashboard users")

Text = Annotated[str, Meta(max_length=MAX_TAGS_LENGTH)]
Role = Literal["administrator", "operator", "viewer", ""]


class Login(msgspec.Struct):
    username: Text
    password: Text


class CallerRecord(msgspec.Struct):
    """``role``: as for ``POST /users``. ``expires_at``: end of the session in Unix seconds; ``null`` if each request
    contains credentials. ``openid``: whether the user logged in by OpenID Connect, and has no password here."""

    username: str
    role: str
    expires_at: int | None
    openid: bool


class LoggedOut(msgspec.Struct):
    """``url``: where the user also logs out at the OpenID Connect provider."""

    url: str


class NewDashboardUser(msgspec.Struct):
    """``role``: by default the role in ``tags``, otherwise viewer."""

    username: Text
    password: Text
    tags: Text = ""
    role: Role = ""


class DashboardUserUpdate(msgspec.Struct):
    """Changes of a dashboard user; fields that are not given remain unchanged. ``tags`` that name a role set the role,
    unless ``role`` is given. An empty string means no tags."""

    tags: Text | None = None
    role: Role = ""
    password: Text = ""


class NewPassword(msgspec.Struct):
    old_pwd: Text
    new_pwd: Text


@routes.add("POST", "/auth", "Log in to the dashboard", body=Login, reply=CallerRecord, scope="all")
async def log_in(call: Call) -> web.Response:
    """The answer sets the session cookie. A request with it needs the header X-Taipan-Dashboard."""
    given: Login = call.body
    address = call.request.remote or ""
    user = await call.operations.dashboard_users.log_in(given.username, given.password, address)
    caller = call.operations.dashboard_sessions.begin(user, address)
    connection = connection_of(call.request)
    if not connection.is_authenticated:
        connection.authenticated()
    response = json_response({"code": 0, "data": _record(caller)})
    set_token(call.request, response, caller.token)
    return response


@routes.get("/auth", "Who asks", reply=CallerRecord)
def get_caller(call: Call) -> CallerRecord:
    return _record(call.caller)


@routes.add("DELETE", "/auth", "Log out of the dashboard", reply=OnDemand(LoggedOut), scope="all")
async def log_out(call: Call) -> web.Response:
    """``data`` is present if ``dashboard.openid.logout_at_provider`` is set: the page then opens its ``url``."""
    call.operations.dashboard_sessions.end(call.caller.token)
    openid, url = call.operations.openid, ""
    if openid is not None and call.caller.kind == OPENID:
        url = await openid.logout_url()
    response = json_response({"code": 0, "data": LoggedOut(url)} if url else {"code": 0})
    drop_token(call.request, response)
    return response


@routes.get("/users", "Dashboard users", reply=list[DashboardUserRecord])
def list_users(call: Call) -> list[DashboardUserRecord]:
    return call.operations.dashboard_users.listing()


@routes.post("/users", "Create a dashboard user", body=NewDashboardUser)
async def add_user(call: Call) -> None:
    given: NewDashboardUser = call.body
    await call.operations.dashboard_users.add(given.username, given.password, given.tags, given.role or None)


@routes.put("/users/{name}", "Change a dashboard user", body=DashboardUserUpdate)
async def update_user(call: Call) -> None:
    given: DashboardUserUpdate = call.body
    await call.operations.dashboard_users.update(
        call.path["name"], given.tags, given.role or None, given.password or None
    )


@routes.delete("/users/{name}", "Delete a dashboard user")
async def delete_user(call: Call) -> None:
    await call.operations.dashboard_users.delete(call.path["name"])


@routes.add("PUT", "/change_pwd/{name}", "Change a dashboard user's password", body=NewPassword, scope="all")
async def change_password(call: Call) -> None:
    """Users may change their own password; administrators may change any. Either way, all sessions of that user end."""
    given: NewPassword = call.body
    name = call.path["name"]
    if call.caller.role != ADMINISTRATOR and call.caller.name != name:
        raise Forbidden(f"{call.caller.name} has the role {call.caller.role} and may change only its own password")
    address = call.request.remote or ""
    await call.operations.dashboard_users.change_password(name, given.old_pwd, given.new_pwd, address)


def _record(caller: Caller) -> CallerRecord:
    ends = caller.expires_at
    return CallerRecord(caller.name, caller.role, None if ends is None else int(ends), caller.kind == OPENID)
