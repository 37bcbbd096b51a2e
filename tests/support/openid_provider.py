"""A provider of OpenID Connect over real HTTP, as the standard describes it, and its hostile variants."""

import base64
import hashlib
import html
import json
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote_plus, urlencode

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

CLIENT_ID = "taipan-dashboard"
SECRET = "s3cret: of the client"
"""With characters that the Basic scheme of OAuth 2.0 encodes."""
GROUPS = {"olga": ["night-shift"], "root": ["mqtt-admins", "staff"], "eve": ["readers"], "nobody": ["staff"]}
"""Users, and the groups of each."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SigningKey:
    """A key pair with a ``kid``."""

    def __init__(self, algorithm: str = "ES256") -> None:
        self.algorithm = algorithm
        self.kid = secrets.token_hex(4)
        public: dict[str, Any]
        if algorithm == "ES256":
            curve = ec.generate_private_key(ec.SECP256R1())
            self.private: Any = curve
            public = ECAlgorithm.to_jwk(curve.public_key(), as_dict=True)
        else:
            number = rsa.generate_private_key(65_537, 2048)
            self.private = number
            public = RSAAlgorithm.to_jwk(number.public_key(), as_dict=True)
        self.jwk = {**public, "kid": self.kid, "use": "sig", "alg": algorithm}

    def sign(self, claims: dict[str, Any], **header: Any) -> str:
        return jwt.encode(claims, self.private, self.algorithm, {"kid": self.kid, **header})


class OpenIdProvider:
    """``url``: the issuer. ``user``: who logs in without a form; empty: the form asks.

    A test changes the rest: ``change`` edits the claims of an ID token, ``sign`` makes the token, ``answers`` has other
    handlers by path, ``in_userinfo`` names claims that only the userinfo endpoint has."""

    def __init__(self, redirect_uri: str = "", secret: str = SECRET) -> None:
        self.redirect_uri = redirect_uri
        self.secret = secret
        self.url = ""
        self.user = ""
        self.keys = [SigningKey()]
        self.in_userinfo: tuple[str, ...] = ()
        self.change: Callable[[dict[str, Any]], None] = lambda claims: None
        self.sign: Callable[[dict[str, Any]], str] = lambda claims: self.keys[-1].sign(claims)
        self.answers: dict[str, Handler] = {}
        self.metadata: dict[str, Any] = {}
        self.asked: list[str] = []
        """The paths of requests, in order."""
        self.logged_out = 0
        self.now: Callable[[], float] = time.time
        self._codes: dict[str, dict[str, str]] = {}
        self._access: dict[str, str] = {}

    def count(self, path: str) -> int:
        return self.asked.count(path)

    def rotate(self) -> None:
        """Sign with a new key; the old one is no longer published."""
        self.keys = [SigningKey()]

    def claims_of(self, user: str) -> dict[str, Any]:
        return {
            "sub": f"id-of-{user}",
            "preferred_username": user,
            "groups": GROUPS.get(user, []),
            "email": f"{user}@example.org",
            "email_verified": True,
        }

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked.append(path)
        if path in self.answers:
            try:
                return await self.answers[path](request)
            except ConnectionError:  # the node has read enough
                return web.Response()
        pages: dict[str, Handler] = {
            "/.well-known/openid-configuration": self._discovery,
            "/authorize": self._authorize,
            "/token": self._token,
            "/jwks": self._jwks,
            "/userinfo": self._userinfo,
            "/logout": self._logout,
        }
        if path not in pages:
            return web.Response(status=404)
        return await pages[path](request)

    async def _discovery(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/jwks",
                "userinfo_endpoint": f"{self.url}/userinfo",
                "end_session_endpoint": f"{self.url}/logout",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256", "RS256"],
                "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
                "code_challenge_methods_supported": ["S256"],
                **self.metadata,
            }
        )

    async def _authorize(self, request: web.Request) -> web.Response:
        given = request.query
        wanted = {
            "client_id": CLIENT_ID,
            "response_type": "code",
            "redirect_uri": self.redirect_uri,
            "code_challenge_method": "S256",
        }
        for name, value in wanted.items():
            if given.get(name) != value:
                return web.Response(status=400, text=f"{name} is {given.get(name)!r}, not {value!r}")
        for name in ("state", "nonce", "code_challenge"):
            if len(given.get(name, "")) < 43:
                return web.Response(status=400, text=f"{name} is short")
        if "openid" not in given.get("scope", "").split():
            return web.Response(status=400, text="the scope is not openid")
        if request.method == "GET" and not self.user:
            return web.Response(text=_FORM, content_type="text/html")
        user = self.user or str((await request.post())["user"])
        if user == "cancel":
            answer = {"error": "access_denied", "error_description": "the person said no"}
        else:
            code = secrets.token_urlsafe(16)
            self._codes[code] = {**given, "user": user}
            answer = {"code": code}
        answer |= {"state": given["state"], "iss": self.url}
        return web.Response(status=303, headers={"Location": f"{self.redirect_uri}?{urlencode(answer)}"})

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        if not self._is_client(request, form):
            return web.json_response({"error": "invalid_client"}, status=401)
        begun = self._codes.pop(form.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if (
            begun is None
            or form.get("grant_type") != "authorization_code"
            or form.get("redirect_uri") != begun["redirect_uri"]
            or challenge.decode().rstrip("=") != begun["code_challenge"]
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        claims = {
            "iss": self.url,
            "aud": CLIENT_ID,
            "iat": int(self.now()),
            "exp": int(self.now()) + 300,
            "nonce": begun["nonce"],
            **self.claims_of(begun["user"]),
        }
        for name in self.in_userinfo:
            claims.pop(name, None)
        self.change(claims)
        access = secrets.token_urlsafe(16)
        self._access[access] = begun["user"]
        return web.json_response({"access_token": access, "token_type": "Bearer", "id_token": self.sign(claims)})

    def _is_client(self, request: web.Request, form: dict[str, str]) -> bool:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            name, _, secret = base64.b64decode(text).decode().partition(":")
            return (unquote_plus(name), unquote_plus(secret)) == (CLIENT_ID, self.secret)
        return (form.get("client_id"), form.get("client_secret", "")) == (CLIENT_ID, self.secret)

    async def _jwks(self, _: web.Request) -> web.Response:
        return web.json_response({"keys": [key.jwk for key in self.keys]})

    async def _userinfo(self, request: web.Request) -> web.Response:
        user = self._access.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if user is None:
            return web.Response(status=401)
        return web.json_response(self.claims_of(user))

    async def _logout(self, request: web.Request) -> web.Response:
        if request.query.get("client_id") != CLIENT_ID:
            return web.Response(status=400)
        self.logged_out += 1
        to = html.escape(request.query["post_logout_redirect_uri"])
        return web.Response(text=f'<!doctype html><a href="{to}">back</a>', content_type="text/html")


_FORM = """<!doctype html><html lang="en"><title>Provider</title><form method="post">
<label>User <input name="user"></label><button>Sign in</button></form></html>"""


@asynccontextmanager
async def openid_provider(
    redirect_uri: str = "", secret: str = SECRET, tls: ssl.SSLContext | None = None
) -> AsyncIterator[OpenIdProvider]:
    """A provider for as long as the block lasts."""
    provider = OpenIdProvider(redirect_uri, secret)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", provider.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    provider.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield provider
    finally:
        await runner.cleanup()


def forged(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """A token with any header and signature."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
