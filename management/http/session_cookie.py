"""The cookie of a dashboard session, and the header without which it is ignored; and the cookie of a login by OpenID
Connect that has begun.

A page of another site cannot send that header: forms cannot, and scripts would need permission first."""

from typing import Final

from aiohttp import web

HEADER: Final = "X-Taipan-Dashboard"
_MAX_LENGTH: Final = 128
_BEGUN: Final = "taipan_openid"
_BEGUN_PATH: Final = "/api"


def token_of(request: web.Request) -> str:
    """Return the token in the cookie, ``""`` if there is none or it is ignored."""
    if HEADER not in request.headers:
        return ""
    return request.cookies.get(_name(request), "")[:_MAX_LENGTH]


def set_token(request: web.Request, response: web.Response, token: str, secure: bool = False) -> None:
    """Set the cookie without a date: the browser deletes it when it closes, and the session has its own expiry.
    ``secure``: whether browsers use HTTPS even if the node does not, because a proxy serves it."""
    response.set_cookie(
        _name(request), token, path="/", httponly=True, samesite="Strict", secure=secure or request.secure
    )


def drop_token(request: web.Request, response: web.Response) -> None:
    response.del_cookie(_name(request), path="/", httponly=True, samesite="Strict", secure=request.secure)


def begun_of(request: web.Request) -> str:
    """Return what ``set_begun`` has set, ``""`` if there is nothing. The provider's page leads here, without a header
    of ours."""
    return request.cookies.get(_name(request, _BEGUN), "")[:_MAX_LENGTH]


def set_begun(request: web.Request, response: web.Response, value: str, lifetime: int, secure: bool) -> None:
    """``SameSite=Lax``: browsers send it when the provider's page leads back. ``secure``: whether browsers use HTTPS,
    which a proxy may serve."""
    response.set_cookie(
        _name(request, _BEGUN),
        value,
        max_age=lifetime,
        path=_BEGUN_PATH,
        httponly=True,
        samesite="Lax",
        secure=secure,
    )


def drop_begun(request: web.Request, response: web.Response, secure: bool) -> None:
    response.del_cookie(_name(request, _BEGUN), path=_BEGUN_PATH, httponly=True, samesite="Lax", secure=secure)


def _name(request: web.Request, kind: str = "taipan_session") -> str:
    """Return the cookie's name with the port: browsers share cookies between all ports of a host, where other nodes may
    run."""
    sockname = None if request.transport is None else request.transport.get_extra_info("sockname")
    return f"{kind}_{sockname[1]}" if sockname else kind
