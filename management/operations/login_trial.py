"""Tests of authentication other than by password: by certificate and by SCRAM."""

from functools import partial
from typing import TYPE_CHECKING, Final

from taipan.broker.access.auth_result import BUSY, AuthOutcome, Trial
from taipan.broker.access.authentication import Authentication
from taipan.broker.access.enhanced import CONTINUE, SUCCESS
from taipan.broker.access.saslprep import saslprep
from taipan.broker.access.scram import NAME as SCRAM_SHA_256
from taipan.broker.access.scram import ScramLogin
from taipan.broker.channel.identity import take_proof
from taipan.broker.core.outcome import Outcome
from taipan.broker.mqtt import reason_codes
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.transport.listener import Listener
from taipan.broker.transport.psk import SETTING as PSK_FILE
from taipan.broker.transport.tls import ServerContext, handshake_refusal

from .refusal import missing, wrong

if TYPE_CHECKING:
    from cryptography import x509

_NOT_SUPPORTED: Final = AuthOutcome(
    reason_codes.BAD_AUTHENTICATION_METHOD, detail="no user has keys for SCRAM-SHA-256", setting="access.users"
)


def read_chain(pem: str) -> "list[x509.Certificate]":
    """Read a certificate chain. Raises Refusal."""
    from taipan.broker.transport.certificate_trial import read_certificates  # cryptography is slow to import

    try:
        return read_certificates(pem)
    except ValueError as error:
        raise wrong("certificate", str(error)) from None


def asks_for_certificates(listener: Listener) -> bool:
    return listener.settings.tls is not None and listener.settings.tls.verify != "none"


def show_certificate(
    listener: Listener, client: ClientInfo, chain: "list[x509.Certificate]"
) -> tuple[Outcome | None, str]:
    """Return why the listener refuses the certificate of this client, or a client without one; and if it does not, why
    the handshake continues, in words. Set the names of ``client``. Raises Refusal."""
    from taipan.broker.transport import certificate_trial

    tls, context = listener.settings.tls, listener.context
    if tls is None:
        raise wrong("certificate", f"listener {listener.label} has no TLS")
    if tls.verify == "none":
        return None, "this listener asks for no certificate, so the certificate was not checked (setting tls.verify)"
    if not isinstance(context, ServerContext):
        raise wrong("listener", f"listener {listener.label} does not run")
    try:
        error = certificate_trial.judge(context, chain)
    except certificate_trial.NotTried as why:
        raise wrong("certificate", f"cannot be checked with the TLS settings of this node: {why}") from None
    if error is not None:
        _, setting, detail = handshake_refusal(error)
        return Outcome(reason_codes.NOT_AUTHORIZED, setting, detail), ""
    if not chain:
        return None, "shows no certificate, and needs none (setting tls.verify)"
    try:
        client.cn, client.dn = certificate_trial.names_of(chain[0])
    except ValueError as why:
        raise wrong("certificate", f"its subject cannot be read: {why}") from None
    revocation = "revocation by tls.crlfile" if tls.crlfile else "revocation was not checked: tls.crlfile is not set"
    return None, (
        f"subject {client.dn}; authorities by tls.cafile and dates are valid, {revocation}; "
        "whether the client has the private key was not checked"
    )


def show_identity(listener: Listener, client: ClientInfo, identity: str | None) -> Outcome | None:
    """Return why the listener refuses this identity of a pre-shared key; ``client`` gets it. Raises Refusal."""
    context = listener.context
    if not isinstance(context, ServerContext) or context.keys is None:
        raise wrong("listener", f"listener {listener.label} does not run")
    if identity is None or not context.keys.knows(identity):
        return Outcome(reason_codes.NOT_AUTHORIZED, PSK_FILE, f"unknown identity {identity or ''!r}")
    client.cn = identity
    return None


def naming(listener: Listener, client: ClientInfo, certified: bool) -> tuple[str, str]:
    """Return the identity of the client from its certificate, in words, and the setting that determines it."""
    tls = listener.settings.tls
    identity = tls.peer_cert_as_username if tls is not None else ""
    setting = "tls.peer_cert_as_username"
    if certified:
        return f'the username is {client.username}, which comes from the certificate ("{identity}")', setting
    if not identity:
        return "the username does not come from the certificate", setting
    return f'the certificate has no single name to use ("{identity}")', setting


def check_scram(username: str | None, password: str | None, protocol: str) -> tuple[str, str]:
    """Return username and password, prepared for SCRAM. Raises Refusal."""
    if protocol != "5.0":
        raise wrong("protocol", f"{SCRAM_SHA_256} requires MQTT 5.0")
    for key, text in (("username", username), ("password", password)):
        if text is None:
            raise missing(key)
        try:
            prepared = saslprep(text)
        except ValueError as error:
            raise wrong(key, f"cannot be sent by {SCRAM_SHA_256}: {error}") from None
        if not prepared:
            raise wrong(key, f"it contains nothing that {SCRAM_SHA_256} could send")
    assert username is not None and password is not None
    return username, password


async def try_scram(
    authentication: Authentication, client: ClientInfo, username: str, password: str, trial: Trial
) -> AuthOutcome:
    """Run the whole exchange, with both sides here. ``client`` gets the identity that it has proved."""
    trial.decided_by = "scram"
    method = authentication.enhanced_method(SCRAM_SHA_256)
    if method is None:
        return _NOT_SUPPORTED
    passwords = authentication.passwords
    login = ScramLogin(username, password)
    exchange = method.start(client)
    step = exchange.step(login.first)
    if step.status == CONTINUE:
        wait = passwords.wait(client, exchange.username, trial)
        if wait is not None and not await wait:
            return BUSY
        proof = await passwords.prove(client, exchange.username, partial(login.final, step.data), trial)
        if proof is None:
            return BUSY
        step = exchange.step(proof)
    if step.status != SUCCESS:
        if exchange.username and step.wrong:
            passwords.proved(client, exchange.username, False, trial)
        return AuthOutcome(step.reason_code, detail=step.detail, setting=step.setting)
    passwords.proved(client, step.username or "", True, trial)
    take_proof(client, step)
    return AuthOutcome(is_superuser=step.is_superuser, proved_by=step.proved_by)
