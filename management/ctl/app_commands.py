"""The commands mgmt and admins: the applications that may use the HTTP API, and the users of the dashboard."""

from typing import get_args

from taipan.broker.observability.log_text import NOTHING

from ..operations.apps import AppRecord
from ..operations.caller import ADMINISTRATOR, ROLES, Scope
from ..operations.dashboard_users import DashboardUserRecord, role_in
from ..operations.refusal import WRONG, Refusal
from .command import OK, CommandCall, CommandResult, Commands, finding, not_found, word

commands = Commands()


@commands.add("mgmt list", "List the applications that may use the HTTP API")
def list_apps(call: CommandCall) -> CommandResult:
    rows = [call.operations.apps.lookup(row.app_id) for row in call.operations.apps.listing()]
    return CommandResult(rows, lambda rows: [_app_line(row) for row in rows])


@commands.add("mgmt lookup <AppId>", "Show an application")
def lookup_app(call: CommandCall) -> CommandResult:
    found = call.operations.apps.lookup(call["AppId"])
    if found is None:
        raise not_found(f"application {call['AppId']}")
    return CommandResult(found, _app_line)


@commands.add(
    "mgmt insert <AppId> <Name> [--scopes <Scopes>]",
    "Create an application; its secret is shown only now. Scopes: all, or read,publish",
)
async def insert_app(call: CommandCall) -> CommandResult:
    scopes = ("all",) if call.get("Scopes") is None else _scopes(call)
    secret = await call.operations.apps.add(call["AppId"], call["Name"], scopes=scopes)
    return CommandResult({"secret": secret}, lambda data: f"AppSecret: {data['secret']}")


@commands.add("mgmt update <AppId> <Status>", "Enable or disable an application: true or false")
async def update_app(call: CommandCall) -> CommandResult:
    status = call.flag("Status")
    with finding():
        await call.operations.apps.update(call["AppId"], status=status)
    return CommandResult(None, "update successfully.")


@commands.add("mgmt scopes <AppId> <Scopes>", "Set what an application may do: all, read, publish or read,publish")
async def set_scopes(call: CommandCall) -> CommandResult:
    with finding():
        await call.operations.apps.update(call["AppId"], scopes=_scopes(call))
    return CommandResult(None, OK)


def _scopes(call: CommandCall) -> tuple[str, ...]:
    """Return the scopes in a list with commas. Raises Refusal."""
    found = tuple(dict.fromkeys(call["Scopes"].split(",")))
    if not set(found) <= set(get_args(Scope)):
        raise Refusal(WRONG, f"Scopes: expected one or more of {', '.join(get_args(Scope))}, separated by commas")
    return found


@commands.add("mgmt delete <AppId>", "Delete an application")
async def delete_app(call: CommandCall) -> CommandResult:
    if not await call.operations.apps.delete(call["AppId"]):
        raise not_found(f"application {call['AppId']}")
    return CommandResult(None, OK)


def _app_line(row: AppRecord) -> str:
    return (
        f"app_id: {row.app_id}, secret: {row.secret}, name: {row.name}, desc: {row.desc}, "
        f"status: {word(row.status)}, expired: {NOTHING if row.expired == 'undefined' else row.expired}, "
        f"scopes: {','.join(row.scopes)}"
    )


@commands.add("admins list", "List the dashboard users")
def list_admins(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.dashboard_users.listing(), lambda rows: [_admin_line(row) for row in rows])


@commands.add(
    "admins add <Username> <Password> [<Tags>] [--role <Role>]",
    "Create a dashboard user: administrator, operator or viewer",
)
async def add_admin(call: CommandCall) -> CommandResult:
    """Create a dashboard user. Without a role, the user becomes an administrator, as in EMQX."""
    tags = call.get("Tags") or ""
    role = call.choice("Role", *ROLES) if call.get("Role") is not None else role_in(tags) or ADMINISTRATOR
    await call.operations.dashboard_users.add(call["Username"], call["Password"], tags, role)
    return CommandResult(None, OK)


@commands.add("admins passwd <Username> <Password>", "Change the password of a dashboard user")
async def change_admin_password(call: CommandCall) -> CommandResult:
    await call.operations.dashboard_users.update(call["Username"], password=call["Password"])
    return CommandResult(None, OK)


@commands.add("admins role <Username> <Role>", "Change the role of a dashboard user: administrator, operator or viewer")
async def change_admin_role(call: CommandCall) -> CommandResult:
    await call.operations.dashboard_users.update(call["Username"], role=call.choice("Role", *ROLES))
    return CommandResult(None, OK)


@commands.add("admins del <Username>", "Delete a dashboard user")
async def delete_admin(call: CommandCall) -> CommandResult:
    await call.operations.dashboard_users.delete(call["Username"])
    return CommandResult(None, OK)


def _admin_line(row: DashboardUserRecord) -> str:
    return f"Admin(username={row.username}, role={row.role}, tags={row.tags})"
