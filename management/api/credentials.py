"""Credentials in a body: a password, the hash of one, or the request that the node generates a secret."""

from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from taipan.broker.access.foreign_hashes import read_hash
from taipan.broker.access.random_secret import check_random, generate
from taipan.broker.access.stored.users import USERNAME
from taipan.broker.loop.cooperative_slice import CooperativeSlice

from ..http.envelope import Extra
from ..http.routes import Call
from ..operations.refusal import MISSING, WRONG, Refusal, wrong
from ..operations.users import OK, NewUser

KEY: Final = "Idempotency-Key"

Name = Annotated[str, Meta(min_length=1, max_length=65_535)]
Password = Annotated[str, Meta(min_length=1, max_length=65_535)]


class Credentials(msgspec.Struct, kw_only=True):
    """One of ``password``, ``password_hash`` and ``generate``. ``method``, ``salt``, ``iterations`` and ``digest``
    describe a ``password_hash`` that does not contain them. ``high_entropy``: the password is a random secret, for
    which a fast hash is safe."""

    password: Password | None = None
    password_hash: Password | None = None
    method: Literal["sha256", "pbkdf2", "bcrypt", "scrypt", "mosquitto"] | None = None
    salt: str | None = None
    iterations: Annotated[int, Meta(ge=1)] | None = None
    digest: Literal["sha1", "sha256", "sha512"] | None = None
    high_entropy: bool = False
    generate: bool = False


def new_user(name: str, given: Credentials, is_superuser: bool, place: str = "") -> tuple[NewUser, str | None]:
    """Return the user, and the secret that the node has generated for it. ``place``: its position in the body."""
    ways = (given.password is not None) + (given.password_hash is not None) + given.generate
    if ways == 0:
        raise Refusal(MISSING, f"password is missing{f' in {place}' if place else ''}")
    where = f"{place}.password" if place else "password"
    if ways > 1:
        raise Refusal(WRONG, f"{where}: give one of password, password_hash and generate")
    described = any(each is not None for each in (given.method, given.salt, given.iterations, given.digest))
    if described and given.password_hash is None:
        raise wrong(where, "method, salt, iterations and digest require password_hash")
    if given.generate:
        secret = generate()
        return NewUser(name, secret, is_superuser, high_entropy=True), secret
    if given.password_hash is None:
        password = given.password or ""
        if given.high_entropy:
            try:
                check_random(password.encode("utf-8", "surrogatepass"))
            except ValueError as error:
                raise wrong(where, str(error)) from None
        return NewUser(name, password, is_superuser, high_entropy=given.high_entropy), None
    if given.high_entropy:
        raise wrong(where, "high_entropy requires password")
    try:
        ready = read_hash(given.password_hash, given.method, given.salt, given.iterations, given.digest)
    except ValueError as error:
        raise wrong(f"{place}.password_hash" if place else "password_hash", str(error)) from None
    return NewUser(name, "", is_superuser, ready), None


async def add_users(call: Call, given: list[tuple[str, Credentials, bool]], kind: str = USERNAME) -> Extra:
    """Add the users; ``data`` has the result by name. Next to ``data`` are ``passwords``, which the node has generated,
    and ``warning``: what the first user changes for others, and which users have a published default password."""
    listed = isinstance(call.body, list)
    made: dict[str, str | None] = {}  # of a name that occurs twice, the first user is used
    new: list[NewUser] = []
    first: dict[str, NewUser] = {}
    reading = CooperativeSlice()
    for index, (name, credentials, is_superuser) in enumerate(given):
        user, secret = new_user(name, credentials, is_superuser, f"[{index}]" if listed else "")
        new.append(user)
        made.setdefault(name, secret)
        first.setdefault(name, user)
        await reading.checkpoint()

    async def work(progress: Callable[[int], None]) -> Extra:
        users = call.operations.users
        warning = await users.first_user()
        outcome = await users.add(new, kind, progress)
        beside: dict[str, str | dict[str, str]] = {}
        passwords = {name: secret for name, secret in made.items() if secret is not None and outcome[name] == OK}
        if passwords:
            beside["passwords"] = passwords
        if OK not in outcome.values():
            warning = None
        defaults = users.default_passwords([user for user in first.values() if outcome[user.name] == OK])
        warnings = "; ".join(filter(None, (warning, defaults)))
        if warnings:
            beside["warning"] = warnings
        return Extra(outcome, **beside)

    key = call.request.headers.get(KEY)
    if key is None:
        return await work(lambda done: None)
    answer: Extra = await call.operations.user_requests.once(key, [kind, call.body], len(given), work)
    return answer


async def update_user(call: Call, name: str, is_superuser: bool | None, kind: str = USERNAME) -> Extra | None:
    """Change its credentials; the answer has ``passwords`` where the node has made one, and ``warning`` as above."""
    user, secret = new_user(name, call.body, bool(is_superuser))
    await call.operations.users.update(user, is_superuser, kind)
    if secret is not None:
        return Extra(None, passwords={name: secret})
    warning = call.operations.users.default_passwords([user])
    return None if warning is None else Extra(None, warning=warning)
