"""What can be wrong with the settings of outside access sources that their types do not say."""

import re
from collections.abc import Iterator
from typing import Final

from taipan.broker.access.http import PLACEHOLDERS, check_placeholders, check_url, tls_context
from taipan.broker.access.jwt_keys import JwtKeys
from taipan.broker.config import AccessSettings, HttpAccessSettings, JwtSettings

from .validation import Fault

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^`|~\w-]+", re.ASCII)
_NO_HEADER_VALUE: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


def faults(access: AccessSettings) -> Iterator[Fault]:
    """One after the other. Reads the files that are named."""
    for key in ("authenticators", "authorizers"):
        order = getattr(access, key)
        if len(set(order)) < len(order):
            yield Fault((key,), "the same source twice")
    if access.http is not None:
        yield from _faults_of_http(access.http)
    if access.jwt is not None:
        yield from _faults_of_jwt(access.jwt)


def _faults_of_http(http: HttpAccessSettings) -> Iterator[Fault]:
    if not (http.auth_url or http.superuser_url or http.acl_url):
        yield Fault(("http",), "needs auth_url, superuser_url or acl_url")
    for what, unknown in (("auth", "At"), ("superuser", "AtP"), ("acl", "P")):
        known = "".join(letter for letter in PLACEHOLDERS if letter not in unknown)
        try:
            check_url(getattr(http, f"{what}_url"))
        except ValueError as error:
            yield Fault(("http", f"{what}_url"), str(error))
        for name, template in getattr(http, f"{what}_params").items():
            try:
                check_placeholders(known, template)
            except ValueError as error:
                yield Fault(("http", f"{what}_params", name), str(error))
    for name, value in http.headers.items():
        if not _HEADER_NAME.fullmatch(name) or _NO_HEADER_VALUE.search(value):
            yield Fault(("http", "headers", name), "expected the name and value of an HTTP header")
    try:
        tls_context(http)
    except ValueError as error:
        yield Fault(("http", "cafile"), str(error))


def _faults_of_jwt(jwt: JwtSettings) -> Iterator[Fault]:
    if not jwt.algorithms:
        yield Fault(("jwt", "algorithms"), "expected at least one algorithm")
    try:
        check_url(jwt.jwks_url)
    except ValueError as error:
        yield Fault(("jwt", "jwks_url"), str(error))
    if jwt.token_from == "username":
        for claim, template in jwt.verify_claims.items():
            if template == "%u" and claim != jwt.username_claim:
                yield Fault(
                    ("jwt", "verify_claims", claim), "the token is the user name: no other is there to compare with"
                )
    try:
        JwtKeys(jwt)
    except ValueError as error:
        yield Fault(("jwt",), str(error))
