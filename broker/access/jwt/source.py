"""JwtSource: clients that prove their identity by a JSON Web Token, and the permissions in the token."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal, TypeGuard

import jwt

from ...config import RuleSettings
from ...mqtt import reason_codes
from ...session.client_info import ClientInfo
from ..acl import EVERYTHING, AclRule, ReadRule, asked_about
from ..auth_result import AuthOutcome
from ..decision import Decision
from ..source import Source, SourceContext
from ..token import Token
from .declaration import JwtSettings
from .keys import JwksUrl, JwtKeys, KeyNotFound

if TYPE_CHECKING:
    from jwt.types import Options

logger = logging.getLogger(__name__)

_MAX_TOPICS: Final = 1000
_LATEST: Final = 1e12  # Unix seconds; greater values are not valid times

_ACL_CLAIM: Final = "access.jwt.acl_claim"
_NOT_IN_TOKEN: Final = Decision(False, _ACL_CLAIM)

# PyJWT checks signature and form; times and claims are checked here, with the node's clock and an exact reason.
_OPTIONS: "Final[Options]" = {
    "verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False, "verify_iss": False,
    "verify_sub": False, "verify_jti": False,
}  # fmt: skip

_Action = Literal["publish", "subscribe", "pubsub"]
_ACTIONS: Final[tuple[tuple[str, _Action], ...]] = (("pub", "publish"), ("sub", "subscribe"), ("all", "pubsub"))


class JwtSource(Source):
    """An ``Authenticator``, and an ``AclRuleSource`` for the clients that it has accepted."""

    has_rules: Final = True
    of_login = True
    without_outcome = "finds no token"
    without_decision = "its token has no rules"

    def __init__(self, settings: JwtSettings, context: SourceContext) -> None:
        """Raises ``ValueError`` for a key that cannot be read."""
        super().__init__("jwt")
        self.settings = settings
        self._clock = context.clock
        self._keys = JwtKeys(settings)
        self._url = JwksUrl(settings.jwks_url, settings.jwks_refresh, self._keys) if settings.jwks_url else None

    def authenticator(self) -> "JwtSource":
        return self

    def authorizer(self) -> "JwtSource":
        return self

    def start(self) -> None:
        """Start fetching keys, if they come from a URL."""
        if self._url is not None:
            self._url.start()

    def halt(self) -> None:
        """Stop fetching keys."""
        if self._url is not None:
            self._url.stop()

    # Authentication

    def authenticate(self, client: ClientInfo, password: bytes | None) -> AuthOutcome | None:
        """Return ``None`` if there is no token. A token in place of the username is removed from it, so that nothing
        else sees it."""
        settings = self.settings
        if settings.token_from == "username":
            text = client.username or ""
        else:
            text = (password or b"").decode("ascii", "replace")
        header = _header(text)
        if header is None:
            return None
        if settings.token_from == "username":
            client.username = None
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in settings.algorithms:
            return _refuse("token_algorithm_not_allowed", "access.jwt.algorithms")
        try:
            key = self._keys.find(algorithm, header.get("kid"))
        except KeyNotFound as missing:
            if not missing.fetched:
                return AuthOutcome(reason_codes.SERVER_UNAVAILABLE, detail="no_keys_yet", setting="access.jwt.jwks_url")
            return _refuse("no_key_for_this_token", missing.setting)
        try:
            claims = jwt.decode(text, key, algorithms=[algorithm], options=_OPTIONS)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            return _refuse(f"token_invalid_{type(error).__name__}", "access.jwt")
        return self._check_claims(client, claims)

    def _check_claims(self, client: ClientInfo, claims: dict[str, object]) -> AuthOutcome:
        settings = self.settings
        now = self._clock.wall()
        expires: float | None = None
        if "exp" in claims:
            expiry = claims["exp"]
            if not _is_time(expiry):
                return _refuse("token_exp_unreadable", "access.jwt")
            expires = expiry + settings.leeway
            if now >= expires:
                return _refuse("token_expired", "access.jwt.leeway")
        begins = claims.get("nbf")
        if "nbf" in claims and not (_is_time(begins) and now + settings.leeway >= begins):
            return _refuse("token_not_valid_yet", "access.jwt.leeway")
        username = claims.get(settings.username_claim) if settings.username_claim else None
        if client.username is None and isinstance(username, str) and username:
            client.username = username
        # A name in a claim of the token is proved; any other name is only claimed by the client.
        names = bool(client.username) and client.username == username
        identifies = False
        for claim, template in settings.verify_claims.items():
            wanted = {"%u": client.username or "", "%c": client.client_id}.get(template, template)
            value = claims.get(claim)
            # There may be several audiences.
            if not wanted or not (value == wanted or (isinstance(value, list) and wanted in value)):
                return _refuse(f"token_claim_{claim}_differs", f"access.jwt.verify_claims.{claim}")
            names = names or template == "%u"
            identifies = identifies or template == "%c"
        try:
            rules = self._rules(claims)
        except ValueError as error:
            return _refuse(f"token_acl_unreadable: {error}", _ACL_CLAIM)
        client.token = Token(expires, rules, "access.jwt")
        return AuthOutcome(proved_by=self.name if names else "", proves_client_id=identifies)

    def _rules(self, claims: dict[str, object]) -> tuple[AclRule, ...] | None:
        claim = self.settings.acl_claim
        if not claim or claim not in claims:
            return None
        acl = claims[claim]
        if not isinstance(acl, dict):
            raise ValueError("expected an object")
        rules: list[AclRule] = []
        for key, action in _ACTIONS:
            topics = acl.get(key, [])
            if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
                raise ValueError(f"{key}: expected a list of topics")
            if len(topics) > _MAX_TOPICS:
                raise ValueError(f"{key}: more than {_MAX_TOPICS} topics")
            if topics:  # a rule without topics would apply to all topics
                rules.append(AclRule(RuleSettings(allow=True, action=action, topics=topics), _ACL_CLAIM))
        return tuple(rules)

    # Authorization

    def decide(self, client: ClientInfo, action: str, topic: str) -> Decision | None:
        """Decide with the token's access claim, if it has one: topics that the claim does not contain are denied."""
        token = client.token
        if not isinstance(token, Token) or token.rules is None:
            return None
        publish = action == "publish"
        topic, levels = asked_about(publish, topic)
        for rule in token.rules:
            if (rule.publish if publish else rule.subscribe) and rule.matches_topic(client, topic, levels):
                return rule.decision
        return _NOT_IN_TOKEN

    def read_rules(self, client: ClientInfo, topic_filter: str) -> Iterator[ReadRule]:
        token = client.token
        if not isinstance(token, Token) or token.rules is None:
            return
        for rule in token.rules:
            yield from rule.read_rules(client)
        yield False, EVERYTHING


def _header(text: str) -> dict[str, object] | None:
    """Return the header of a token; ``None``: this is not a token, but perhaps a password."""
    if text.count(".") != 2:
        return None
    try:
        return jwt.get_unverified_header(text)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        return None


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LATEST


def _refuse(detail: str, setting: str) -> AuthOutcome:
    return AuthOutcome(reason_codes.BAD_USER_NAME_OR_PASSWORD, detail=detail, setting=setting)
