"""mgmt: the applications that may use the HTTP API."""

from typing import Any

from ..operations.refusal import EXISTS, UNKNOWN, Refusal
from .command import NOT_FOUND, OK, Answer, Call, Commands, Failure, not_found

commands = Commands()


@commands.add("mgmt list", "List the applications that may use the HTTP API")
def list_apps(call: Call) -> Answer:
    rows = [call.operations.apps.lookup(row["app_id"]) for row in call.operations.apps.listing()]
    return Answer(rows, lambda rows: [_app_line(row) for row in rows])


@commands.add("mgmt lookup <AppId>", "Show an application")
def lookup_app(call: Call) -> Answer:
    found = call.operations.apps.lookup(call["AppId"])
    if found is None:
        raise not_found(f"application {call['AppId']}")
    return Answer(found, _app_line)


@commands.add("mgmt insert <AppId> <Name>", "Add an application; its secret is shown this once")
async def insert_app(call: Call) -> Answer:
    try:
        secret = await call.operations.apps.add(call["AppId"], call["Name"])
    except Refusal as refusal:
        if refusal.code != EXISTS:
            raise
        raise Failure(EXISTS, refusal.message, "Error: already existed") from None
    return Answer({"secret": secret}, lambda data: f"AppSecret: {data['secret']}")


@commands.add("mgmt update <AppId> <Status>", "Let an application in, or no longer: true, false")
async def update_app(call: Call) -> Answer:
    status = call.flag("Status")
    try:
        await call.operations.apps.update(call["AppId"], status=status)
    except Refusal as refusal:
        if refusal.code != UNKNOWN:
            raise
        raise Failure(UNKNOWN, refusal.message, NOT_FOUND) from None
    return Answer(None, "update successfully.")


@commands.add("mgmt delete <AppId>", "Remove an application")
async def delete_app(call: Call) -> Answer:
    if not await call.operations.apps.delete(call["AppId"]):
        raise not_found(f"application {call['AppId']}")
    return Answer(None, OK)


def _app_line(row: dict[str, Any]) -> str:
    status = "true" if row["status"] else "false"
    return (
        f"app_id: {row['app_id']}, secret: {row['secret']}, name: {row['name']}, desc: {row['desc']}, "
        f"status: {status}, expired: {row['expired']}"
    )
