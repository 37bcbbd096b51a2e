"""Login to the dashboard by OpenID Connect, with a provider over real HTTP that behaves, and with one that does not."""

import asyncio
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import jwt
import msgspec
import pytest
from aiohttp import web
from yarl import URL

from taipan.management.configuration.config import Loaded, Settings
from taipan.management.configuration.config_document import Origins
from taipan.management.operations.openid.provider import MAX_ANSWER
from tests.support.api import ManagedNode, Reply, assert_refused, managed_node
from tests.support.certificates import Certificates
from tests.support.node import free_port
from tests.support.openid_provider import CLIENT_ID, SECRET, OpenIdProvider, SigningKey, forged, openid_provider
from tests.support.patience import patience
from tests.support.waiting import until

from .test_dashboard_login import PASSWORD, Browser, Dashboard

pytestmark = pytest.mark.asyncio

ROLES = {"administrators": ["mqtt-admins"], "operators": ["night-shift"], "viewers": ["readers"]}
CALLBACK = "/api/v4/auth/openid/callback"


class Setting:
    """A node whose users log in at ``provider``."""

    def __init__(self, node: ManagedNode, provider: OpenIdProvider) -> None:
        self.node = node
        self.provider = provider
        self.dashboard = Dashboard(node)

    def refusals(self) -> dict[str, int]:
        """Of logins by OpenID Connect, by reason."""
        found = self.node.server.metrics.refusals.snapshot()
        prefix = "dashboard_openid_"
        return {name.removeprefix(prefix): count for name, count in found.items() if name.startswith(prefix) and count}

    async def begin(self, browser: Browser) -> Reply:
        return await browser.get("/auth/openid/start")

    async def at_provider(self, url: str) -> str:
        """What the provider answers a browser that opens ``url``: where it sends the browser."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(URL(url, encoded=True), allow_redirects=False) as response,
        ):
            assert response.status == 303, await response.text()
            return response.headers["Location"]

    async def come_back(self, browser: Browser, url: str) -> Reply:
        """As the browser's navigation, which sends no header of ours."""
        path, _, query = url.removeprefix(self.dashboard.url + "/api/v4").partition("?")
        return await browser.ask("GET", f"{path}?{query}", headers={})

    async def log_in(self, user: str, browser: Browser | None = None) -> tuple[Browser, str]:
        """A browser that has gone the whole way, and the reason for which it was refused."""
        browser = browser or self.dashboard.browser()
        self.provider.user = user
        begun = await self.begin(browser)
        assert begun.status == 303, begun.text
        to = begun.headers["Location"]
        if to.startswith(self.provider.url):
            reply = await self.come_back(browser, await self.at_provider(to))
            assert reply.status == 303, reply.text
            to = reply.headers["Location"]
        assert to.startswith(self.dashboard.url + "/")
        rest = to.removeprefix(self.dashboard.url + "/")
        assert rest == "" or rest.startswith("#/?openid="), to
        return browser, rest.removeprefix("#/?openid=")

    async def refused(self, user: str = "olga") -> str:
        """The reason for which this user is refused: counted, logged and without a session."""
        before = self.refusals()
        browser, reason = await self.log_in(user)
        assert reason, "not refused"
        assert_refused(await browser.get("/auth"), 401, 104)
        assert len(self.node.management.operations.dashboard_sessions) == 0
        assert self.refusals() == {**before, reason: before.get(reason, 0) + 1}
        return reason


@asynccontextmanager
async def setting(
    more: dict[str, Any] | None = None,
    management: dict[str, Any] | None = None,
    dashboard: dict[str, Any] | None = None,
    guesses: int = 0,
    **provider: Any,
) -> AsyncIterator[Setting]:
    """``more``: keys of ``[dashboard.openid]``. ``guesses``: 0: no login waits. ``provider``: arguments of
    ``openid_provider``."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with openid_provider(url + CALLBACK, **provider) as found:
        openid = {
            "issuer": found.url,
            "client_id": CLIENT_ID,
            "client_secret": SECRET,
            "dashboard_url": url,
            **ROLES,
            **(more or {}),
        }
        table = {"bind": f"127.0.0.1:{port}", "openid": openid, **(dashboard or {})}
        access = {"hash_cost": 10, "guesses": guesses}
        async with managed_node(management, dashboard=table, access=access) as node:
            found.now = node.server.clock.wall
            opened = Setting(node, found)
            try:
                yield opened
            finally:
                await opened.dashboard.close()


# ------------------------------------------------------------------ what works


@pytest.mark.parametrize(("user", "role"), [("root", "administrator"), ("olga", "operator"), ("eve", "viewer")])
async def test_a_login_gives_a_session_with_the_role_of_a_group(
    user: str, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taipan.management")
    async with setting() as here:
        browser, reason = await here.log_in(user)
        assert reason == ""
        who = (await browser.get("/auth")).data
        assert (who["username"], who["role"]) == (f"openid:{user}", role)
        assert who["expires_at"] > time.time() + 28_000
        status = (await browser.post("/users", {"username": "u", "password": PASSWORD})).status
        assert status == (200 if role == "administrator" else 403)
        assert (await browser.delete("/auth")).code == 0
        assert_refused(await browser.get("/auth"), 401, 104)
        assert f"dashboard_login username=openid:{user} role={role} address=127.0.0.1" in caplog.text
        assert f"dashboard_session_ended username=openid:{user}" in caplog.text
        assert here.refusals() == {}


async def test_what_the_browser_sees_on_its_way(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made: list[str] = []
    async with setting() as here:
        sign = here.provider.sign

        def note(claims: dict[str, Any]) -> str:
            made.append(sign(claims))
            return made[-1]

        here.provider.sign = note
        here.provider.user = "olga"
        browser = here.dashboard.browser()
        told = (await browser.get("/auth/openid")).data
        assert told == {"label": "", "url": f"{here.dashboard.url}/api/v4/auth/openid/start"}
        begun = await here.begin(browser)
        cookie = begun.headers["Set-Cookie"]
        for part in ("HttpOnly", "SameSite=Lax", "Path=/api", "Max-Age=600"):
            assert part in cookie
        assert begun.headers["Cache-Control"] == "no-store" and begun.headers["Referrer-Policy"] == "no-referrer"
        asked = {name: value for name, (value,) in parse_qs(urlsplit(begun.headers["Location"]).query).items()}
        assert asked["code_challenge_method"] == "S256" and asked["scope"] == "openid profile email"
        assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
        again = parse_qs(urlsplit((await here.begin(here.dashboard.browser())).headers["Location"]).query)
        assert not {asked["state"], asked["nonce"]} & {again["state"][0], again["nonce"][0]}
        back = await here.at_provider(begun.headers["Location"])
        reply = await here.come_back(browser, back)
        assert reply.headers["Location"] == here.dashboard.url + "/"
        session, dropped = sorted(reply.headers.getall("Set-Cookie"), reverse=True)
        assert "SameSite=Strict" in session and "HttpOnly" in session and "taipan_session_" in session
        assert "taipan_openid_" in dropped and "Max-Age=0" in dropped
        # The same answer again logs nobody in: the browser has no login that has begun.
        assert (await here.come_back(browser, back)).headers["Location"].endswith("#/?openid=state")
        code = parse_qs(urlsplit(back).query)["code"][0]
        for secret in (*made, code, SECRET, asked["state"], asked["nonce"]):
            assert secret not in caplog.text and secret not in reply.headers["Location"]


async def test_the_role_is_taken_anew_at_each_login() -> None:
    async with setting() as here:
        browser, _ = await here.log_in("olga")
        assert (await browser.get("/auth")).data["role"] == "operator"
        here.provider.change = lambda claims: claims.update(groups=["readers", "mqtt-admins"])
        assert (await browser.get("/auth")).data["role"] == "operator"
        browser, _ = await here.log_in("olga", browser)
        assert (await browser.get("/auth")).data["role"] == "administrator"
        here.provider.change = lambda claims: claims.update(groups=[])
        assert (await here.log_in("olga"))[1] == "role"


async def test_it_never_is_the_local_user_of_the_same_name() -> None:
    async with setting() as here:
        users = here.node.management.operations.dashboard_users
        await users.add("eve", PASSWORD, "administrator")
        local = await here.dashboard.logged_in("eve")
        browser, _ = await here.log_in("eve")
        assert (await browser.get("/auth")).data["role"] == "viewer"
        assert_refused(await browser.post("/rules", {}), 403, 108)
        assert_refused(await browser.put("/change_pwd/eve", {"old_pwd": PASSWORD, "new_pwd": "other-pass-1"}), 403, 108)
        assert_refused(
            await local.post("/users", {"username": "openid:eve", "password": PASSWORD}), 400, 108, "no colon"
        )
        # What becomes of the local user does not concern the other one, and the other way round.
        assert (await local.delete("/users/eve")).code == 0
        assert (await browser.get("/auth")).data["username"] == "openid:eve"
        assert_refused(await local.get("/auth"), 401, 104)


async def test_the_audit_names_the_way() -> None:
    async with setting() as here:
        browser, _ = await here.log_in("root")
        assert (await browser.post("/users", {"username": "new", "password": PASSWORD})).code == 0
        assert (await browser.post("/annotations", {"text": "deployed"})).code == 0
        rows = (await browser.get("/audit")).data
        assert [(row["who"], row["door"], row["what"]) for row in rows] == [
            ("openid:root", "dashboard", "POST /annotations"),
            ("openid:root", "dashboard", "POST /users"),
        ]


async def test_the_session_ends_as_any_other() -> None:
    async with setting(dashboard={"max_sessions": 2}) as here:
        first, _ = await here.log_in("olga")
        second, _ = await here.log_in("olga")
        third, _ = await here.log_in("eve")
        assert_refused(await first.get("/auth"), 401, 104)
        assert (await second.get("/auth")).code == (await third.get("/auth")).code == 0
        await here.node.pass_time(28_801)
        assert_refused(await second.get("/auth"), 401, 104)
        assert len(here.node.management.operations.dashboard_sessions) == 0


async def test_without_settings_there_is_no_such_login() -> None:
    async with managed_node(dashboard={}) as node:
        browser = Browser(node.management.dashboard_url)
        assert (await browser.get("/auth/openid")).data == {}
        for path in ("start", "callback"):
            assert_refused(await browser.get(f"/auth/openid/{path}"), 404, 102, "dashboard.openid")
        await browser.close()


async def test_at_the_management_port_too() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/dashboard/"
    async with setting(
        {"dashboard_url": url},
        {"bind": f"127.0.0.1:{port}"},
        {"on_management": True, "bind": f"127.0.0.1:{free_port()}"},
    ) as here:
        here.provider.redirect_uri = f"http://127.0.0.1:{port}{CALLBACK}"
        here.provider.user = "eve"
        browser = Browser(here.node.management.url)
        begun = await browser.get("/auth/openid/start")
        back = await here.at_provider(begun.headers["Location"])
        reply = await browser.ask("GET", back.removeprefix(f"http://127.0.0.1:{port}/api/v4"), headers={})
        assert reply.headers["Location"] == url
        assert (await browser.get("/auth")).data["username"] == "openid:eve"
        await browser.close()


@pytest.mark.parametrize(
    ("methods", "secret"),
    [(["client_secret_basic"], SECRET), (["client_secret_post"], SECRET), (["none"], "")],
)
async def test_how_the_client_proves_itself(methods: list[str], secret: str) -> None:
    async with setting({"client_secret": secret}, secret=secret) as here:
        here.provider.metadata = {"token_endpoint_auth_methods_supported": methods}
        assert (await here.log_in("eve"))[1] == ""


async def test_the_secret_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    async with setting({"client_secret": "", "client_secret_file": str(file)}) as here:
        assert (await here.log_in("eve"))[1] == ""


async def test_the_secret_is_masked_where_settings_are_shown() -> None:
    async with setting() as here:
        management = here.node.management
        dashboard = management.dashboard_settings
        assert dashboard.openid is not None
        openid = msgspec.structs.replace(dashboard.openid, client_secret_file="/etc/taipan/secret")
        dashboard = msgspec.structs.replace(dashboard, openid=openid)
        made = Settings(broker=here.node.server.settings, dashboard=dashboard)
        management.operations.configuration.use(Loaded(made, Origins()))
        shown = {each["key"]: each for each in (await here.node.api.get("/configuration", key="dashboard.openid")).data}
        assert shown["dashboard.openid.client_secret"]["value"] == "******"
        assert shown["dashboard.openid.issuer"]["value"] == here.provider.url
        assert shown["dashboard.openid.client_secret_file"]["value"] == "/etc/taipan/secret"
        assert not any(each["reloadable"] for each in shown.values())
        assert all(each["description"] for each in shown.values()), shown


async def test_a_provider_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificates.issue("localhost"))
    async with setting({"cafile": certificates.ca}, tls=tls) as here:
        begun = await here.begin(here.dashboard.browser())
        assert begun.headers["Location"].startswith(here.provider.url + "/authorize?")
    async with setting(tls=tls) as here:
        assert (await here.begin(here.dashboard.browser())).headers["Location"].endswith("#/?openid=provider")


async def test_claims_that_only_userinfo_has() -> None:
    async with setting() as here:
        here.provider.in_userinfo = ("groups", "preferred_username", "email")
        browser, reason = await here.log_in("root")
        assert reason == ""
        assert (await browser.get("/auth")).data["role"] == "administrator"
        assert here.provider.count("/userinfo") == 1
        # A claim of the ID token, which is signed, comes before one of userinfo.
        here.provider.in_userinfo = ("preferred_username",)
        here.provider.change = lambda claims: claims.update(groups=["readers"])
        browser, _ = await here.log_in("root")
        assert (await browser.get("/auth")).data["role"] == "viewer"


async def test_claims_of_other_names() -> None:
    more = {"username_claim": "email", "roles_claim": "realm_access.roles"}
    async with setting(more) as here:
        here.provider.change = lambda claims: claims.update(realm_access={"roles": ["readers"]})
        browser, reason = await here.log_in("olga")
        assert reason == ""
        assert (await browser.get("/auth")).data == {
            **(await browser.get("/auth")).data,
            "username": "openid:olga@example.org",
            "role": "viewer",
        }
        here.provider.change = lambda claims: claims.update({"realm_access.roles": "night-shift"})
        browser, _ = await here.log_in("olga")
        assert (await browser.get("/auth")).data["role"] == "operator"


async def test_only_userinfo_knows_that_the_address_is_verified() -> None:
    async with setting({"username_claim": "email"}) as here:
        here.provider.in_userinfo = ("email_verified",)
        browser, reason = await here.log_in("olga")
        assert reason == ""
        assert (await browser.get("/auth")).data["username"] == "openid:olga@example.org"


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
async def test_cookies_are_secure_behind_a_proxy_with_the_certificate(scheme: str) -> None:
    async with setting({"dashboard_url": f"{scheme}://mqtt.example.org"}) as here:
        here.provider.redirect_uri = f"https://mqtt.example.org{CALLBACK}"
        here.provider.user = "olga"
        browser = here.dashboard.browser()
        begun = await here.begin(browser)
        cookie = begun.headers["Set-Cookie"]
        assert "; Secure" in cookie
        back = await here.at_provider(begun.headers["Location"])
        path = back.removeprefix("https://mqtt.example.org/api/v4")
        reply = await browser.ask("GET", path, headers={"Cookie": cookie.partition(";")[0]})
        assert reply.headers["Location"] == f"{scheme}://mqtt.example.org/"
        session = [each for each in reply.headers.getall("Set-Cookie") if each.startswith("taipan_session")]
        assert len(session) == 1 and "; Secure" in session[0]


async def test_a_default_role() -> None:
    async with setting({"default_role": "viewer"}) as here:
        browser, _ = await here.log_in("nobody")
        assert (await browser.get("/auth")).data["role"] == "viewer"
        browser, _ = await here.log_in("olga")
        assert (await browser.get("/auth")).data["role"] == "operator"


async def test_a_log_out_at_the_provider() -> None:
    async with setting({"logout_at_provider": True}) as here:
        browser, _ = await here.log_in("eve")
        data = (await browser.delete("/auth")).data
        told = urlsplit(data["url"])
        assert f"{told.scheme}://{told.netloc}{told.path}" == here.provider.url + "/logout"
        assert parse_qs(told.query) == {
            "client_id": [CLIENT_ID],
            "post_logout_redirect_uri": [here.dashboard.url + "/"],
        }
        # Of a user with a password the provider knows nothing.
        await here.node.management.operations.dashboard_users.add("root", PASSWORD, "administrator")
        local = await here.dashboard.logged_in()
        assert "data" not in (await local.delete("/auth")).json


async def test_new_keys_of_the_provider() -> None:
    async with setting() as here:
        assert (await here.log_in("eve"))[1] == ""
        assert (here.provider.count("/jwks"), here.provider.count("/.well-known/openid-configuration")) == (1, 1)
        await here.node.pass_time(11)
        here.provider.rotate()
        assert (await here.log_in("eve"))[1] == ""
        assert here.provider.count("/jwks") == 2
        # Tokens with keys that nobody has do not make the node ask each time.
        here.provider.sign = SigningKey().sign
        for _ in range(4):
            assert (await here.log_in("eve"))[1] == "token"
        assert here.provider.count("/jwks") == 2
        await here.node.pass_time(11)
        assert (await here.log_in("eve"))[1] == "token"
        assert here.provider.count("/jwks") == 3


async def test_what_the_provider_publishes_is_read_again_after_an_hour() -> None:
    async with setting() as here:
        assert (await here.log_in("eve"))[1] == ""
        await here.node.pass_time(3601)
        assert (await here.log_in("eve"))[1] == ""
        assert (here.provider.count("/jwks"), here.provider.count("/.well-known/openid-configuration")) == (2, 2)
        # What was read before holds while it cannot be read again.
        await here.node.pass_time(3601)
        for path in ("/jwks", "/.well-known/openid-configuration"):
            here.provider.answers[path] = _status(503)
        assert (await here.log_in("eve"))[1] == ""


@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
async def test_keys_without_kid(algorithm: str) -> None:
    async with setting() as here:
        key = SigningKey(algorithm)
        del key.jwk["kid"]
        here.provider.keys = [key]
        here.provider.sign = lambda claims: jwt.encode(claims, key.private, algorithm)
        assert (await here.log_in("eve"))[1] == ""


# -------------------------------------------------------------- hostile tokens


def changed(**claims: Any) -> Callable[[OpenIdProvider], None]:
    """``None`` removes the claim."""

    def change(given: dict[str, Any]) -> None:
        for name, value in claims.items():
            given[name] = value
            if value is None:
                del given[name]

    def prepare(provider: OpenIdProvider) -> None:
        provider.change = change

    return prepare


def signed(sign: Callable[[OpenIdProvider, dict[str, Any]], str]) -> Callable[[OpenIdProvider], None]:
    def prepare(provider: OpenIdProvider) -> None:
        provider.sign = lambda claims: sign(provider, claims)

    return prepare


def _by_secret(provider: OpenIdProvider, claims: dict[str, Any]) -> str:
    """With the client's secret, as a provider signs that shares it."""
    return jwt.encode(claims, SECRET.ljust(32), "HS256", {"kid": provider.keys[0].kid})


def _by_public_key(provider: OpenIdProvider, claims: dict[str, Any]) -> str:
    """With the public key as a secret, which everybody has."""
    return forged({"alg": "HS256", "kid": provider.keys[0].kid}, claims, b"x" * 32)


def _broken(provider: OpenIdProvider, claims: dict[str, Any]) -> str:
    head, _, signature = provider.keys[0].sign(claims).split(".")
    return ".".join([head, forged({}, {**claims, "groups": ["mqtt-admins"]}).split(".")[1], signature])


NOW = int(time.time())
BAD_TOKENS = {
    "nonce: belongs to another login": changed(nonce="x" * 43),
    "nonce: belongs": changed(nonce=None),
    "nonce": changed(nonce=7),
    "iss: the token": changed(iss="https://evil.example.org"),
    "iss": changed(iss=None),
    "aud: the token": changed(aud="another-client"),
    "aud": changed(aud=[]),
    "aud: ": changed(aud=None),
    "azp: the token": changed(azp="another-client"),
    "azp": changed(aud=[CLIENT_ID, "another-client"]),
    "exp: the token has": changed(exp=NOW - 3600),
    "exp: the": changed(exp=None),
    "exp": changed(exp="never"),
    "exp: ": changed(exp=True),
    "iat: issued": changed(iat=NOW + 36_000),
    "iat": changed(iat=None),
    "nbf: not": changed(nbf=NOW + 36_000),
    "sub: missing": changed(sub=None),
    "sub": changed(sub=""),
    "alg: none": signed(lambda provider, claims: forged({"alg": "none"}, claims)),
    "alg: None": signed(lambda provider, claims: forged({"alg": "None", "kid": provider.keys[0].kid}, claims)),
    "alg: HS256": signed(_by_secret),
    "alg: HS": signed(_by_public_key),
    "alg: ": signed(lambda provider, claims: forged({"alg": ["ES256"]}, claims)),
    "header": signed(lambda provider, claims: "nonsense"),
    "header: ": signed(lambda provider, claims: "a.b.c.d.e"),
    "header:": signed(lambda provider, claims: ""),
    "kid: the provider": signed(lambda provider, claims: SigningKey().sign(claims)),
    "signature": signed(_broken),
    "signature: ": signed(lambda provider, claims: forged({"alg": "ES256", "kid": provider.keys[0].kid}, claims)),
    "signature:": signed(lambda provider, claims: forged({"alg": "ES256", "kid": provider.keys[0].kid}, claims, b"1")),
    " ": signed(lambda provider, claims: provider.keys[0].sign(claims, crit=["b64"], b64=True)),
}
"""By the beginning of the detail in the log."""


async def test_tokens_that_prove_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with setting() as here:
        good = here.provider.change, here.provider.sign
        for detail, prepare in BAD_TOKENS.items():
            caplog.clear()
            here.provider.change, here.provider.sign = good
            prepare(here.provider)
            assert await here.refused("root") == "token", detail
            await here.node.pass_time(11)  # a line in ten seconds
            (line,) = [each.getMessage() for each in caplog.records if "dashboard_openid_refused" in each.getMessage()]
            assert detail.strip() in line, (detail, line)
            assert "reason=token" in line and "address=127.0.0.1" in line and "setting=dashboard.openid" in line


# ------------------------------------------------------- a provider that fails


def _status(status: int, text: str = "") -> Callable[[web.Request], Any]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, content_type="application/json")

    return answer


def _huge(status: int = 200) -> Callable[[web.Request], Any]:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for _ in range(MAX_ANSWER * 100 // 65_536):
            await response.write(b"x" * 65_536)
        return response

    return answer


async def _slow(_: web.Request) -> web.Response:
    await asyncio.sleep(600)
    return web.Response()


async def _drips(request: web.Request) -> web.StreamResponse:
    """Says something all the time, and never ends."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.05)


async def _elsewhere(request: web.Request) -> web.Response:
    return web.Response(status=307, headers={"Location": str(request.url.with_path("/elsewhere"))})


DISCOVERY = "/.well-known/openid-configuration"
ENDPOINTS = [DISCOVERY, "/jwks", "/token", "/userinfo"]
FAILURES = {
    "status 500": _status(500),
    "status 200 ": _status(200, "nonsense"),
    "status 200": _status(200, "[" * 100_000),
    "longer than": _huge(),
    "no answer within": _slow,
    "no answer": _drips,
    "status 307": _elsewhere,
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_a_provider_that_does_not_answer_as_it_should(endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    async with setting({"timeout": patience(0.3)}) as here:
        here.provider.in_userinfo = ("groups",)
        for detail, answer in FAILURES.items():
            caplog.clear()
            here.provider.answers = {endpoint: answer}
            assert await here.refused() == "provider", detail
            await here.node.pass_time(11)
            (line,) = [each.getMessage() for each in caplog.records if "dashboard_openid_refused" in each.getMessage()]
            assert detail.startswith("status 200") or detail in line, line
        assert here.provider.count("/elsewhere") == 0
        here.provider.answers = {}
        assert (await here.log_in("olga"))[1] == ""


async def test_a_provider_that_is_away_is_asked_every_five_seconds_only() -> None:
    async with setting() as here:
        here.provider.answers[DISCOVERY] = _status(503)
        for _ in range(10):
            assert (await here.log_in("olga"))[1] == "provider"
        assert here.provider.count(DISCOVERY) == 1
        await here.node.pass_time(6)
        assert (await here.log_in("olga"))[1] == "provider"
        assert here.provider.count(DISCOVERY) == 2
        del here.provider.answers[DISCOVERY]
        await here.node.pass_time(6)
        assert (await here.log_in("olga"))[1] == ""


async def test_a_provider_that_is_silent_keeps_nobody_waiting_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a failed request took does not count as time since the failure."""
    monkeypatch.setattr("taipan.management.operations.openid.provider.RETRY", 0.2)
    async with setting({"timeout": 0.4}) as here:
        here.provider.answers[DISCOVERY] = _slow
        begun = await asyncio.gather(*(here.begin(here.dashboard.browser()) for _ in range(5)))
        assert {reply.headers["Location"].partition("=")[2] for reply in begun} == {"provider"}
        assert here.provider.count(DISCOVERY) == 1


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example.org"},
        {"token_endpoint": "http://evil.example.org/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": ""},
        {"userinfo_endpoint": "http://evil.example.org/"},
        {"end_session_endpoint": "data:text/html,x"},
        {"token_endpoint": None},
    ],
)
async def test_a_discovery_document_that_is_not_followed(metadata: dict[str, Any]) -> None:
    async with setting() as here:
        here.provider.metadata = metadata
        assert await here.refused() == "provider"


async def test_a_provider_elsewhere_leads_to_no_service_of_this_machine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificates.issue("localhost"))
    for name in ("token_endpoint", "jwks_uri", "userinfo_endpoint", "end_session_endpoint"):
        async with setting({"cafile": certificates.ca}, tls=tls) as here:
            here.provider.metadata = {name: f"http://127.0.0.1:{free_port()}/"}
            assert await here.refused() == "provider"
            assert f"discovery: {name}: expected https://host..., as for the issuer" in caplog.text


async def test_a_provider_that_always_names_itself_is_held_to_it() -> None:
    """RFC 9207, section 2.4."""
    async with setting() as here:
        here.provider.metadata = {"authorization_response_iss_parameter_supported": True}
        assert (await here.log_in("olga"))[1] == ""
        browser = here.dashboard.browser()
        back = await here.at_provider((await here.begin(browser)).headers["Location"])
        reply = await here.come_back(browser, back.partition("&iss=")[0])
        assert reply.headers["Location"].endswith("#/?openid=token")


async def test_a_wrong_secret_is_the_operator_s_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with setting({"client_secret": "wrong"}) as here:
        assert await here.refused() == "provider"
        assert "setting=dashboard.openid.client_secret" in caplog.text and "invalid_client" in caplog.text
        assert "wrong" not in caplog.text


async def test_userinfo_of_another_user() -> None:
    async with setting() as here:
        here.provider.in_userinfo = ("groups",)
        here.provider.answers["/userinfo"] = _status(200, json.dumps({"sub": "id-of-root", "groups": ["mqtt-admins"]}))
        assert await here.refused() == "token"


@pytest.mark.parametrize(
    ("more", "claims", "reason"),
    [
        ({}, {"groups": ["staff"]}, "role"),
        ({}, {"groups": []}, "role"),
        ({}, {"groups": {"mqtt-admins": True}}, "role"),
        ({}, {"groups": [["mqtt-admins"], 7, None]}, "role"),
        ({"roles_claim": "preferred_username.roles"}, {}, "role"),
        ({}, {"preferred_username": ""}, "user"),
        ({}, {"preferred_username": 7}, "user"),
        ({}, {"preferred_username": "x" * 257}, "user"),
        ({}, {"preferred_username": "a\nb"}, "user"),
        ({}, {"preferred_username": "\u202eeve"}, "user"),
        ({"username_claim": "no_such_claim"}, {}, "user"),
        ({"username_claim": "email"}, {"email_verified": False}, "user"),
        ({"username_claim": "email"}, {"email_verified": "true"}, "user"),
    ],
)
async def test_users_without_a_role_or_a_name(more: dict[str, Any], claims: dict[str, Any], reason: str) -> None:
    async with setting(more) as here:
        here.provider.change = lambda given: given.update(claims)
        assert await here.refused("root") == reason


async def test_a_person_who_says_no_at_the_provider(caplog: pytest.LogCaptureFixture) -> None:
    async with setting() as here:
        asked = here.provider.count("/token")
        here.provider.answers["/authorize"] = _says_no(here)
        assert await here.refused() == "denied"
        assert here.provider.count("/token") == asked
        assert "access_denied the person said no" in caplog.text


def _says_no(here: Setting) -> Callable[[web.Request], Any]:
    async def answer(request: web.Request) -> web.Response:
        query = {
            "state": request.query["state"],
            "error": "access_denied",
            "error_description": "the person said no",
        }
        return web.Response(status=303, headers={"Location": str(URL(here.provider.redirect_uri).with_query(query))})

    return answer


# ------------------------------------------------------- who begins, who ends


async def test_an_answer_counts_in_the_browser_that_has_begun_only() -> None:
    """Otherwise a page could log its reader in as somebody else."""
    async with setting() as here:
        here.provider.user = "root"
        attacker, victim = here.dashboard.browser(), here.dashboard.browser()
        back = await here.at_provider((await here.begin(attacker)).headers["Location"])
        for prepared in (False, True):
            if prepared:
                await here.begin(victim)
            reply = await here.come_back(victim, back)
            assert reply.headers["Location"].endswith("#/?openid=state")
            assert "taipan_session" not in str(reply.headers)
        assert here.provider.count("/token") == 0
        assert (await here.come_back(attacker, back)).headers["Location"] == here.dashboard.url + "/"


async def test_a_login_that_takes_too_long() -> None:
    async with setting() as here:
        here.provider.user = "root"
        browser = here.dashboard.browser()
        back = await here.at_provider((await here.begin(browser)).headers["Location"])
        await here.node.pass_time(601)
        assert (await here.come_back(browser, back)).headers["Location"].endswith("#/?openid=state")


@pytest.mark.parametrize(
    "query",
    ["", "state=", "state=x&code=y", "code=y", "error=access_denied", "state=%ff&code=%ff", "state=a&state=b&code=c"],
)
async def test_answers_that_nobody_has_asked_for(query: str) -> None:
    async with setting() as here:
        browser = here.dashboard.browser()
        for _ in range(2):
            reply = await here.come_back(browser, f"{here.dashboard.url}{CALLBACK}?{query}")
            assert (reply.status, reply.headers["Location"]) == (303, here.dashboard.url + "/#/?openid=state")
            await here.begin(browser)
        assert here.provider.count("/token") == 0


@pytest.mark.parametrize(
    "cookie", ["x", "9999999999.x", ".", "9999999999.", "-1.x", "1" * 5000, "\xe9", "9999999999.x; other=1"]
)
async def test_cookies_that_are_made_up(cookie: str) -> None:
    async with setting() as here:
        port = urlsplit(here.dashboard.url).port
        client = here.dashboard.browser()
        reply = await client.ask(
            "GET", "/auth/openid/callback?state=x&code=y", headers={"Cookie": f"taipan_openid_{port}={cookie}"}
        )
        assert reply.headers["Location"].endswith("#/?openid=state")


async def test_other_answers_to_a_login_that_has_begun() -> None:
    async with setting() as here:
        here.provider.user = "root"
        for change, reason in (
            ({"code": "made-up"}, "token"),
            ({"code": ""}, "token"),
            ({"code": "x" * 5000}, "token"),
            ({"iss": "https://evil.example.org"}, "token"),
            ({"state": "x" * 43}, "state"),
            ({"error": "login_required"}, "denied"),
        ):
            browser = here.dashboard.browser()
            back = URL(await here.at_provider((await here.begin(browser)).headers["Location"])).update_query(change)
            reply = await here.come_back(browser, str(back))
            assert reply.headers["Location"] == f"{here.dashboard.url}/#/?openid={reason}", change
            assert_refused(await browser.get("/auth"), 401, 104)


async def test_a_code_is_good_with_its_own_verifier_only() -> None:
    """A code that leaks is of no use in another browser: the provider checks PKCE."""
    async with setting() as here:
        here.provider.user = "root"
        browser, other = here.dashboard.browser(), here.dashboard.browser()
        first = URL(await here.at_provider((await here.begin(browser)).headers["Location"]))
        second = URL(await here.at_provider((await here.begin(other)).headers["Location"]))
        mixed = second.update_query(code=first.query["code"])
        assert (await here.come_back(other, str(mixed))).headers["Location"].endswith("#/?openid=token")


async def test_logins_that_have_begun_cost_nothing() -> None:
    """Whoever begins them, nobody else is kept out, and nothing grows."""
    async with setting() as here:
        begun = here.dashboard.browser()
        assert (await here.begin(begun)).status == 303
        openid = here.node.management.operations.openid
        assert openid is not None
        before = {name: repr(value) for name, value in vars(openid).items()}
        for _ in range(300):
            assert (await here.begin(here.dashboard.browser())).status == 303
        assert {name: repr(value) for name, value in vars(openid).items()} == before
        assert (await here.log_in("eve", begun))[1] == ""


# ----------------------------------------------------------------- rate limits


async def test_wrong_answers_wait_as_wrong_passwords_do(caplog: pytest.LogCaptureFixture) -> None:
    async with setting(guesses=3) as here:
        sign = here.provider.sign
        here.provider.sign = SigningKey().sign
        for _ in range(5):
            assert (await here.log_in("eve"))[1] == "token"
        assert "password_guesses_slowed address=127.0.0.1 username=openid:127.0.0.1" in caplog.text
        refusals = here.node.server.metrics.refusals
        assert refusals.snapshot().get("password_attempt_held", 0) >= 1
        # A right one waits as well, and is accepted.
        here.provider.sign = sign
        assert (await here.log_in("eve"))[1] == ""
        # From then on, an address that was right waits for its own wrong ones only.
        held = refusals.snapshot()["password_attempt_held"]
        assert (await here.log_in("eve"))[1] == ""
        assert refusals.snapshot()["password_attempt_held"] == held


async def test_a_flood_of_callbacks_asks_the_provider_a_little_at_a_time() -> None:
    async with setting({"timeout": 30.0}, dashboard={"max_unauthenticated": 300, "max_connections": 400}) as here:
        here.provider.user = "eve"
        go = asyncio.Event()
        at_a_time = 0

        async def wait(request: web.Request) -> web.StreamResponse:
            nonlocal at_a_time
            at_a_time += 1
            await go.wait()
            return await here.provider._token(request)

        here.provider.answers["/token"] = wait
        assert (await here.begin(here.dashboard.browser())).status == 303
        browsers = [here.dashboard.browser() for _ in range(40)]

        async def log_in(browser: Browser) -> str:
            back = await here.at_provider((await here.begin(browser)).headers["Location"])
            return (await here.come_back(browser, back)).headers["Location"]

        tasks = [asyncio.ensure_future(log_in(browser)) for browser in browsers]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await until(lambda: sum(task.done() for task in tasks) == 8 and at_a_time == 32)
        go.set()
        ended = await asyncio.gather(*tasks)
        assert sorted(each.removeprefix(here.dashboard.url) for each in ended) == ["/"] * 32 + ["/#/?openid=busy"] * 8
        assert here.refusals() == {"busy": 8}


async def test_a_refusal_is_a_line_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    async with setting() as here:
        for _ in range(50):
            await here.come_back(here.dashboard.browser(), here.dashboard.url + CALLBACK)
        assert caplog.text.count("dashboard_openid_refused reason=state") == 1
        await here.node.pass_time(11)
        await here.come_back(here.dashboard.browser(), here.dashboard.url + CALLBACK)
        assert "dashboard_openid_refused reason=state count=50" in caplog.text
        assert here.refusals() == {"state": 51}
