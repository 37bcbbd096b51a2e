"""/auth_user: users by user name, which EMQX 4.1 calls the login."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..http.reading import PageQuery
from ..http.routes import Call, OrEmpty, Routes
from ..operations.users import NewUser, login_record

routes = Routes("Authentication users")

Name = Annotated[str, Meta(min_length=1, max_length=65_535)]
Password = Annotated[str, Meta(min_length=1, max_length=65_535)]


class LoginRecord(msgspec.Struct):
    """Specification, Authentication user record."""

    login: str
    password: str
    is_superuser: bool


class NewLogin(msgspec.Struct):
    login: Name
    password: Password
    is_superuser: bool


class LoginUpdate(msgspec.Struct):
    password: Password
    is_superuser: bool


@routes.get("/auth_user", "Users by user name", query=PageQuery, reply=list[LoginRecord])
def list_auth_user(call: Call) -> Any:
    limit = call.query.rows(call.operations.settings.max_row_limit)
    return call.operations.users.listing(call.query.page, limit)


@routes.get("/auth_user/{login}", "A user", reply=OrEmpty(LoginRecord))
def lookup_auth_user(call: Call) -> Any:
    user = call.operations.users.lookup(call.path["login"])
    return login_record(user) if user is not None else {}


@routes.post("/auth_user", "Add users", body=list[NewLogin] | NewLogin, reply=dict[str, str])
async def add_auth_user(call: Call) -> Any:
    given = call.body if isinstance(call.body, list) else [call.body]
    return await call.operations.users.add([NewUser(each.login, each.password, each.is_superuser) for each in given])


@routes.put("/auth_user/{login}", "Change a user", body=LoginUpdate)
async def update_auth_user(call: Call) -> Any:
    await call.operations.users.update(call.path["login"], call.body.password, call.body.is_superuser)


@routes.delete("/auth_user/{login}", "Remove a user")
async def delete_auth_user(call: Call) -> Any:
    await call.operations.users.delete(call.path["login"])
