"""/auth/openid: login to the dashboard by OpenID Connect. A browser opens two of these endpoints as pages, which lead
to the provider and back to the dashboard."""

from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from ..http.protocol import connection_of
from ..http.routes import Call, Endpoints, OrEmpty, Redirect
from ..http.session_cookie import begun_of, drop_begun, set_begun, set_token
from ..operations.openid.refused import SETTING, OpenIdRefused
from ..operations.refusal import not_found

if TYPE_CHECKING:
    from ..operations.openid.logins import OpenIdLogins

routes = Endpoints("Dashboard users")


class OpenIdRecord(msgspec.Struct):
    """``label``: the text of the button; empty: the page's own text. ``url``: a browser that opens it begins the
    login."""

    label: str
    url: str


class OpenIdAnswer(msgspec.Struct, omit_defaults=True):
    """The answer of the provider, as parameters of the callback."""

    state: str = ""
    code: str = ""
    iss: str | None = None
    error: str | None = None
    error_description: str = ""


@routes.get("/auth/openid", "How to log in by OpenID Connect", reply=OrEmpty(OpenIdRecord))
def get_openid(call: Call) -> OpenIdRecord | dict[str, Any]:
    """Returns an empty object if ``[dashboard.openid]`` is not set up."""
    openid = call.operations.openid
    return {} if openid is None else OpenIdRecord(openid.settings.label, openid.start_url)


@routes.get("/auth/openid/start", "Go to the OpenID Connect provider", reply=Redirect("to the provider"))
async def start_openid(call: Call) -> web.Response:
    openid = _openid(call)
    try:
        begun = await openid.begin(call.request.remote or "")
    except OpenIdRefused as refused:
        return _redirect(openid.page(refused.reason))
    response = _redirect(begun.url)
    set_begun(call.request, response, begun.cookie, openid.lifetime, openid.is_secure)
    return response


@routes.get(
    "/auth/openid/callback",
    "Come back from the OpenID Connect provider",
    query=OpenIdAnswer,
    reply=Redirect("to the dashboard"),
)
async def finish_openid(call: Call) -> web.Response:
    """The answer sets the session cookie; if the login failed, the page explains why."""
    openid = _openid(call)
    try:
        caller = await openid.finish(msgspec.to_builtins(call.query), begun_of(call.request), call.request.remote or "")
    except OpenIdRefused as refused:
        response = _redirect(openid.page(refused.reason))
    else:
        connection = connection_of(call.request)
        if not connection.is_authenticated:
            connection.authenticated()
        response = _redirect(openid.page())
        set_token(call.request, response, caller.token, openid.is_secure)
    drop_begun(call.request, response, openid.is_secure)
    return response


def _openid(call: Call) -> "OpenIdLogins":
    if call.operations.openid is None:
        raise not_found("setting", SETTING)
    return call.operations.openid


def _redirect(url: str) -> web.Response:
    return web.Response(status=303, headers={"Location": url, "Referrer-Policy": "no-referrer"})
