"""The declaration of ``[access.jwt]``: its settings, and the requirements for their values."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ...setting_rules import check_url, filled, parsed
from ...value_types import Seconds
from ..declaration import AccessSource, SourceReason
from ..emqx_plugin import EmqxPlugin

JwtAlgorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]


class JwtSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """JSON Web Tokens, verified by a secret, a public key or a set of keys."""

    token_from: Literal["password", "username"] = "password"
    algorithms: tuple[JwtAlgorithm, ...] = ("HS256", "RS256", "ES256")
    secret: str = ""
    secret_base64: bool = False
    public_key_file: str = ""
    jwks_file: str = ""
    jwks_url: str = ""
    jwks_refresh: Annotated[float, Meta(ge=5, extra={"unit": "seconds"})] = 300.0
    leeway: Seconds = 0.0
    verify_claims: dict[str, str] = msgspec.field(default_factory=lambda: {"sub": "%u"})
    username_claim: str = "sub"  # the user name of a client that gave none
    acl_claim: str = "acl"


SOURCE: Final = AccessSource(
    name="jwt",
    place=3,
    settings=JwtSettings,
    emqx=EmqxPlugin(orders=("jwt",), plugin="emqx_auth_jwt", module="jwt_authentication"),
    create="taipan.broker.access.jwt.source:JwtSource",
    check="taipan.broker.access.jwt.keys:faults",
    rules={"algorithms": filled("at least one algorithm"), "jwks_url": parsed(check_url)},
    shown=frozenset(["public_key_file", "token_from"]),
    reasons=(
        SourceReason(
            "client", "token_expired", ("access.jwt",), "the token that the client authenticated with has expired"
        ),
        SourceReason(
            "client",
            "bad_username_or_password",
            ("access.jwt", "access.jwt.<key>"),
            "the token is not valid; detail gives the cause (token_expired, token_claim_sub_differs)",
        ),
        SourceReason("client", "server_unavailable", ("access.jwt.jwks_url",), "the keys have not been fetched yet"),
        SourceReason(
            "message", "not_authorized", ("access.jwt.acl_claim",), "the client's token does not allow the topic"
        ),
    ),
)
