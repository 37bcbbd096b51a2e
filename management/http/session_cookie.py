"""The cookie of a dashboard session, and the header without which it is ignored.

A page of another site cannot send that header: forms cannot, and scripts would need permission first."""

from typing import Final

from aiohttp import web

HEADER: Final = "X-Taipan-Dashboard"
_MAX_LENGTH: Final = 128


def token_of(request: web.Request) -> str:
    """Return the token in the cookie, ``""`` if there is none or it is ignored."""
    if HEADER not in request.headers:
        return ""
    return request.cookies.get(_name(request), "")[:_MAX_LENGTH]


def set_token(request: web.Request, response: web.Response, token: str) -> None:
    """Set the cookie without a date: the browser deletes it when it closes, and the session has its own expiry."""
    response.set_cookie(_name(request), token, path="/", httponly=True, samesite="Strict", secure=request.secure)


def drop_token(request: web.Request, response: web.Response) -> None:
    response.del_cookie(_name(request), path="/", httponly=True, samesite="Strict", secure=request.secure)


def _name(request: web.Request) -> str:
    """Return the cookie's name with the port: browsers share cookies between all ports of a host, where other nodes may
    run."""
    sockname = None if request.transport is None else request.transport.get_extra_info("sockname")
    return f"taipan_session_{sockname[1]}" if sockname else "taipan_session"
