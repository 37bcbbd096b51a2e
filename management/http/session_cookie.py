"""The cookie of a dashboard session, and the header without which it counts for nothing.

A page of another site cannot send that header: no form does, and its scripts would have to be let first.
"""

from typing import Final

from aiohttp import web

HEADER: Final = "X-Taipan-Dashboard"
_MAX_LENGTH: Final = 128


def token_of(request: web.Request) -> str:
    """Of the cookie, ``""`` for none that counts."""
    if HEADER not in request.headers:
        return ""
    return request.cookies.get(_name(request), "")[:_MAX_LENGTH]


def set_token(request: web.Request, response: web.Response, token: str) -> None:
    """Without a date: the browser forgets it at its end, and the session has one of its own."""
    response.set_cookie(_name(request), token, path="/", httponly=True, samesite="Strict", secure=request.secure)


def drop_token(request: web.Request, response: web.Response) -> None:
    response.del_cookie(_name(request), path="/", httponly=True, samesite="Strict", secure=request.secure)


def _name(request: web.Request) -> str:
    """With the port: browsers keep one jar for all ports of a host, where other nodes may be."""
    sockname = None if request.transport is None else request.transport.get_extra_info("sockname")
    return f"taipan_session_{sockname[1]}" if sockname else "taipan_session"
