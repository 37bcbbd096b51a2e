"""Access: why a client is or is not allowed to publish, subscribe or log in, found out without doing it.

Each answer comes from the code that decides for clients. It is not added to any client's counters, is not cached, and
calls no hooks."""

from ipaddress import ip_address
from typing import Final, Literal

import msgspec

from taipan.broker.access.auth_result import AuthOutcome, Trial
from taipan.broker.access.decision import ACL_DISABLED, IS_SUPERUSER, Decision, DecisionStep
from taipan.broker.access.source import Source
from taipan.broker.channel.channel import Channel
from taipan.broker.channel.identity import (
    SESSION_BELONGS_TO,
    SESSION_OWNER,
    ban_refusal,
    client_id_refusal,
    mountpoint_of,
    mountpoint_refusal,
    name_by_tls,
    name_refusal,
    owner_before,
    take_id_of_name,
)
from taipan.broker.channel.judging import may_be_judged
from taipan.broker.config import RuleSettings
from taipan.broker.core.outcome import EXCLUSIVE_TAKEN, REWRITTEN_INVALID, Outcome
from taipan.broker.core.subscription_plan import FilterPlan, plan_filter
from taipan.broker.mqtt import reason_codes
from taipan.broker.mqtt.constants import V3, V4, V5
from taipan.broker.mqtt.packets import TopicFilter
from taipan.broker.server import Server
from taipan.broker.session.client_info import PSK, ClientInfo, is_local_user, unmapped
from taipan.broker.transport.listener import Listener

from .listeners import identifier
from .login_trial import (
    asks_for_certificates,
    check_scram,
    naming,
    read_chain,
    show_certificate,
    show_identity,
    try_scram,
)
from .node_calls import NodeCalls
from .owners import Owners
from .refusal import NOT_ONLINE, Refusal, missing, not_found, wrong
from .topic_checks import checked_name

Action = Literal["publish", "subscribe"]
Protocol = Literal["3.1", "3.1.1", "5.0"]

_VERSIONS: Final = {"3.1": V3, "3.1.1": V4, "5.0": V5}
_CONFIGURED_RULE: Final = "access.rules."
_MAX_TEXT: Final = 65_535


class AccessQuery(msgspec.Struct, kw_only=True):
    """The question and the client that it is about. With ``clientid`` alone it is about a connected client; with
    ``username``, ``address`` or ``listener`` it is about a client that could connect. ``ask``: also ask the HTTP
    service."""

    topic: str
    action: Action
    clientid: str = ""
    username: str | None = None
    address: str | None = None
    listener: str | None = None
    qos: int = 0
    retain: bool = False
    ask: bool = False


class AccessStep(msgspec.Struct):
    """``matched``: this step decided; ``permission`` is its decision. ``rule``: the setting, or the API path, that
    decided here."""

    source: str
    rule: str
    matched: bool
    permission: Literal["allow", "deny"] | None
    detail: str


class AskedClient(msgspec.Struct):
    """The client that a question is about. ``proved_by``: the source that authenticated the username; empty: none,
    so no rule applies to the username."""

    clientid: str
    username: str | None
    proved_by: str
    is_superuser: bool
    address: str
    listener: str
    zone: str
    connected: bool
    node: str


class AccessExplained(msgspec.Struct):
    """``allowed`` is null if the HTTP service decides and was not asked. ``rule``: the rule that decided."""

    allowed: bool | None
    reason: str
    rule: str
    client: AskedClient
    steps: list[AccessStep]


class LoginBody(msgspec.Struct, kw_only=True):
    """A login as a client would send it. ``listener``: by default the first one, in the order of ``/listeners``.
    ``address``: the client's address; empty: an address that no rule or ban mentions.

    ``certificate``: the client's certificate in PEM, followed by the certificates that the client sends with it.
    ``cert_common_name`` and ``cert_subject``: names from a certificate that is not given and is assumed to be valid.
    ``authentication_method``: the method that carries username and password, which then are not in CONNECT."""

    clientid: str = ""
    username: str | None = None
    password: str | None = None
    address: str = ""
    listener: str | None = None
    protocol: Protocol = "5.0"
    clean_start: bool = True
    certificate: str | None = None
    cert_common_name: str | None = None
    cert_subject: str | None = None
    authentication_method: Literal["SCRAM-SHA-256"] | None = None


class LoginStepRecord(msgspec.Struct):
    """``outcome``: ``pass`` if this step leaves the decision to the next ones."""

    authenticator: str
    outcome: Literal["allow", "deny", "pass"]
    detail: str
    setting: str


class LoginExplained(msgspec.Struct):
    """Result of a login test. ``reason_code``: the reason code of CONNACK 5.0, or 0x87 if the TLS handshake would fail.
    ``setting``: the setting that decided. ``clientid``, ``username`` and ``proved_by``: identity of the client;
    ``proved_by`` is empty if no source authenticated the username."""

    allowed: bool
    clientid: str
    username: str | None
    proved_by: str
    reason: str
    reason_code: int
    setting: str
    is_superuser: bool
    anonymous: bool
    steps: list[LoginStepRecord]


class Access:
    """Access checks and login tests."""

    def __init__(self, server: Server, calls: NodeCalls, owners: Owners) -> None:
        self._server = server
        self._calls = calls
        self._owners = owners
        calls.serve(self.explain_client, self.owner_of_session)

    # ------------------------------------------------------- publish, subscribe

    async def explain(self, query: AccessQuery) -> AccessExplained:
        """Explain whether a client may publish or subscribe to a topic. Raises Refusal."""
        if query.action == "publish":
            checked_name("topic", query.topic)
        if not 0 <= query.qos <= 2:
            raise wrong("qos", "expected 0, 1 or 2")
        if query.username is None and query.address is None and query.listener is None:
            if not query.clientid:
                raise missing("clientid, or one of username, address and listener,")
            explained: AccessExplained = await self._owners.ask(query.clientid, self.explain_client, query)
            return explained
        client = self._hypothetical(query.clientid, query.username, query.address or "", query.listener)
        authentication = self._server.access.authentication
        authentication.assume(client)
        source = self._server.access.sources.get(client.proved_by)
        if query.ask and source is not None and source.knows_superusers:
            client.is_superuser = await source.is_superuser(client)
        client.mountpoint = mountpoint_of(client.zone.mountpoint, client.client_id, client.user)
        return await self._explain(client, query, None)

    async def explain_client(self, query: AccessQuery) -> AccessExplained:
        """Explain for a connected client of this node, with the identity that it has proved."""
        channel = self._server.context.channels.get(query.clientid)
        session = self._server.broker.sessions.get(query.clientid)
        if channel is None and session is None:
            raise Refusal(NOT_ONLINE, f"no client {query.clientid[:256]}")
        client = channel.client if channel is not None else session.client if session is not None else None
        assert client is not None
        return await self._explain(client, query, channel)

    async def _explain(self, client: ClientInfo, query: AccessQuery, channel: Channel | None) -> AccessExplained:
        steps: list[AccessStep] = []
        if query.action == "publish":
            refusal, topic = self._publish_refusal(client, query)
        else:
            plan = plan_filter(TopicFilter(query.topic, query.qos), client, self._server.broker.rewriting)
            refusal, topic = plan.refusal, plan.topic_filter
        steps.append(_outcome_step("zone", refusal))
        if refusal is not None:
            return self._explained(client, channel, False, refusal.setting, _words(refusal), steps)
        if channel is not None and query.action == "publish":
            steps.append(self._admitted(channel, topic))
        admitted = channel is not None and steps[-1].matched and steps[-1].source == "admitted"
        authorization = self._server.access.authorization
        asked: list[DecisionStep] = []
        decision = authorization.explain(client, query.action, topic, asked)
        if decision is None and query.ask:
            verdicts = await authorization.ask_outside(client, query.action, topic)
            asked.clear()
            decision = authorization.explain(client, query.action, topic, asked, verdicts)
        steps += [self._step(each) for each in asked]
        if self._server.context.hooks.client_check_acl:
            steps.append(AccessStep("hooks", "", False, None, "an extension of this node may decide otherwise"))
        if decision is None:
            outside = authorization.outside(asked[-1].source)
            reason = f"{outside.title} decides, and was not asked (use ask=1 to ask it)"
            return self._explained(client, channel, True if admitted else None, outside.setting, reason, steps)
        context = self._server.context
        if query.action == "subscribe":
            taken = self._taken(client, plan_filter(TopicFilter(query.topic), client, context.broker.rewriting))
            if taken is not None:
                steps.append(taken)
                return self._explained(client, channel, False, taken.rule, taken.detail, steps)
        if query.action == "subscribe" and not decision.allowed and may_be_judged(context, client, topic, decision):
            reason = "it is granted, and each message is checked by its topic: the rules allow some of them"
            steps.append(AccessStep("subscribe_check", "subscribe_check", True, "allow", reason))
            return self._explained(client, channel, True, "subscribe_check", reason, steps)
        allowed = decision.allowed or admitted
        return self._explained(client, channel, allowed, decision.setting, self._reason(decision), steps)

    def _taken(self, client: ClientInfo, plan: FilterPlan) -> AccessStep | None:
        """Return the step that denies an exclusive subscription because another client has it."""
        holder = self._server.broker.exclusive.holder(plan.mounted) if plan.exclusive else ""
        if holder in ("", client.client_id):
            return None
        setting = EXCLUSIVE_TAKEN.setting
        return AccessStep("exclusive", setting, True, "deny", f"the client {holder} has this exclusive subscription")

    def _publish_refusal(self, client: ClientInfo, query: AccessQuery) -> tuple[Outcome | None, str]:
        zone = client.zone
        if query.qos > zone.max_qos:
            return Outcome(reason_codes.QOS_NOT_SUPPORTED, "max_qos"), query.topic
        if query.retain and not zone.retain_available:
            return Outcome(reason_codes.RETAIN_NOT_SUPPORTED, "retain_available"), query.topic
        if zone.max_topic_levels and query.topic.count("/") >= zone.max_topic_levels:
            return Outcome(reason_codes.TOPIC_NAME_INVALID, "max_topic_levels"), query.topic
        topic = query.topic
        rewriting = self._server.broker.rewriting
        if rewriting is not None:
            topic = rewriting.published(topic, client)
            if not topic:
                return REWRITTEN_INVALID, query.topic
        real = self._server.broker.destination(topic)
        return (real, query.topic) if isinstance(real, Outcome) else (None, real)

    def _admitted(self, channel: Channel, topic: str) -> AccessStep:
        """Return whether the channel currently admits messages to this topic without another check."""
        until = (channel.admitted or {}).get(topic)
        generation = self._server.access.authorization.generation
        if until is None or channel.admitted_generation != generation or self._server.clock.now() >= until:
            return AccessStep("admitted", "", False, None, "this connection has not published to this topic recently")
        detail = (
            "this connection may currently publish to this topic without another check; the following decision"
            " allowed it"
        )
        return AccessStep("admitted", "access.cache_ttl", True, "allow", detail)

    def _step(self, step: DecisionStep) -> AccessStep:
        decision = step.decision
        if decision is None:
            detail = self._without_decision(step.source) if step.asked else "was not asked (use ask=1 to ask it)"
            return AccessStep(step.source, "", False, None, step.failure or detail)
        permission: Literal["allow", "deny"] = "allow" if decision.allowed else "deny"
        detail = step.failure or self._rule_text(decision.setting)
        return AccessStep(step.source, decision.setting, True, permission, detail)

    def _without_decision(self, source: str) -> str:
        """Return why an authorizer of the node makes no decision, in words."""
        found = self._server.access.sources.get(source, Source)
        return _SILENT.get(source, found.without_decision)

    def _rule_text(self, setting: str) -> str:
        """Return a rule of the configuration in words. For a stored rule, its path shows its subject."""
        number = setting.removeprefix(_CONFIGURED_RULE)
        rules = self._server.access.authorization.settings.rules
        if number == setting or not number.isdecimal() or int(number) >= len(rules):
            return ""
        return rule_text(rules[int(number)])

    def _reason(self, decision: Decision) -> str:
        if decision is IS_SUPERUSER:
            return "a superuser may do everything"
        if decision is ACL_DISABLED:
            return "the zone has no access rules (setting enable_acl)"
        word = "allows" if decision.allowed else "denies"
        if decision.ignored:
            return f"no rule matches, and access.no_match {word} it"
        text = self._rule_text(decision.setting)
        return f"{decision.setting} {word} it" + (f": {text}" if text else "")

    def _explained(
        self,
        client: ClientInfo,
        channel: Channel | None,
        allowed: bool | None,
        rule: str,
        reason: str,
        steps: list[AccessStep],
    ) -> AccessExplained:
        asked = AskedClient(
            client.client_id,
            client.username,
            client.proved_by if client.user else "",
            client.is_superuser,
            client.peer_host,
            client.listener,
            client.zone_name,
            channel is not None,
            self._calls.name,
        )
        return AccessExplained(allowed, reason, rule, asked, steps)

    # -------------------------------------------------------------------- log in

    async def try_login(self, body: LoginBody) -> LoginExplained:
        """Return the result that a CONNECT with these values would have, as far as this can be found out without
        changes. Raises Refusal."""
        server = self._server
        scram = body.authentication_method is not None
        if scram:
            check_scram(body.username, body.password, body.protocol)
        _check_text("username", body.username or "")
        listener = self._listener(body.listener if body.listener is not None else self._listener_for(body))
        # With SCRAM, CONNECT itself has no username.
        client = self._hypothetical(body.clientid, None if scram else body.username, body.address, listener.label)
        client.proto_ver = _VERSIONS[body.protocol]
        client.clean_start = body.clean_start
        steps: list[LoginStepRecord] = []
        refusal, proved_by = self._passed_tls(body, listener, client, steps)
        if refusal is not None:
            return _login(False, refusal.code, refusal.detail, refusal.setting, client, steps)
        take_id_of_name(client)
        lost = server.access.lost
        refusals = (
            ("node", Outcome(reason_codes.SERVER_UNAVAILABLE, "data.access_lost", lost) if lost else None),
            ("clientid", client_id_refusal(client, client.proto_ver, body.clean_start)),
            ("username", None if scram else name_refusal(client)),
            ("banned", ban_refusal(server.access, client)),
        )
        for source, refusal in refusals:
            steps.append(_login_step(source, refusal))
            if refusal is not None:
                return _login(False, refusal.code, refusal.detail, refusal.setting, client, steps)
        authentication = server.access.authentication
        trial = Trial(authentication.passwords.trial_guesses)
        if scram:
            username, password = check_scram(body.username, body.password, body.protocol)
            outcome = await try_scram(authentication, client, username, password, trial)
            client.username = client.username or username
        else:
            secret = None if body.password is None else body.password.encode("utf-8", "surrogatepass")
            asked = authentication.authenticate(client, secret, proved_by, trial)
            outcome = asked if isinstance(asked, AuthOutcome) else await asked
        for each in trial.steps:
            if each.outcome is None:
                steps.append(LoginStepRecord(each.source, "pass", each.detail, ""))
        passed = outcome.reason_code == 0
        said = "anonymous, no source knows it" if outcome.anonymous else outcome.detail
        steps.append(LoginStepRecord(trial.decided_by, "allow" if passed else "deny", said, _shown(outcome.setting)))
        if server.context.hooks.client_authenticate and not scram:
            steps.append(LoginStepRecord("hooks", "pass", "an extension of this node may decide otherwise", ""))
        if not passed:
            return _login(False, outcome.reason_code, outcome.detail, outcome.setting, client, steps)
        client.anonymous, client.is_superuser = outcome.anonymous, outcome.is_superuser
        client.proved_by, client.proved_client_id = outcome.proved_by, outcome.proves_client_id
        renamed = scram and take_id_of_name(client)
        for source, refusal in (
            ("clientid", client_id_refusal(client, client.proto_ver, body.clean_start) if renamed else None),
            # Again, because a token or SCRAM may have provided the username.
            ("banned", ban_refusal(server.access, client)),
            ("mountpoint", mountpoint_refusal(client)),
            ("session", await self._session_refusal(client)),
        ):
            if source != "clientid" or renamed:
                steps.append(_login_step(source, refusal))
            if refusal is not None:
                return _login(False, refusal.code, refusal.detail, refusal.setting, client, steps)
        return _login(True, 0, "accepted as anonymous" if client.anonymous else "accepted", "", client, steps)

    def _listener_for(self, body: LoginBody) -> str | None:
        """Return the listener that receives the certificate if the request names no listener: the first that requests
        one."""
        if body.certificate is None and body.cert_common_name is None and body.cert_subject is None:
            return None
        for listener in self._server.listeners:
            if asks_for_certificates(listener):
                return listener.label
        raise wrong("certificate", "no listener asks for certificates (setting tls.verify)")

    def _passed_tls(
        self, body: LoginBody, listener: Listener, client: ClientInfo, steps: list[LoginStepRecord]
    ) -> tuple[Outcome | None, str]:
        """Return why the TLS handshake would fail, and what of it proves the username. Raises Refusal."""
        tls = listener.settings.tls
        if tls is not None and tls.username_from == PSK:
            refusal = show_identity(listener, client, body.username)
            said = "the username is the identity of a pre-shared key, which is assumed to be correct"
            steps.append(_login_step("tls", refusal, said))
            return refusal, "" if refusal is not None else name_by_tls(client, PSK)
        named = body.cert_common_name is not None or body.cert_subject is not None
        if named and body.certificate is not None:
            raise wrong("certificate", "give either the certificate or its names")
        if named:
            if not asks_for_certificates(listener):
                raise wrong(
                    "cert_common_name", f"listener {listener.label} asks for no certificate (setting tls.verify)"
                )
            for key, text in (("cert_common_name", body.cert_common_name), ("cert_subject", body.cert_subject)):
                if text is not None:
                    _check_text(key, text)
                    if not text:
                        raise wrong(key, "is empty")
            client.cn, client.dn = body.cert_common_name, body.cert_subject
            steps.append(
                LoginStepRecord(
                    "tls", "pass", "a certificate with this name is assumed to be valid and is not checked", ""
                )
            )
        elif body.certificate is not None or asks_for_certificates(listener):
            chain = [] if body.certificate is None else read_chain(body.certificate)
            refusal, text = show_certificate(listener, client, chain)
            steps.append(_login_step("tls", refusal, text))
            if refusal is not None:
                return refusal, ""
        if client.cn is None and client.dn is None:
            return None, ""
        proof = "" if tls is None else name_by_tls(client, tls.username_from)
        steps.append(LoginStepRecord("tls", "pass", *naming(listener, client, bool(proof))))
        return None, proof

    async def _session_refusal(self, client: ClientInfo) -> Outcome | None:
        if self._server.access.settings.session_owner == "any" or not client.client_id:
            return None
        found = await self._owners.find([client.client_id])
        node = found.nodes.get(client.client_id)
        if node is None:
            return None
        owner = await self._calls.on(node, self.owner_of_session, client.client_id, client.owner)
        return Outcome(reason_codes.NOT_AUTHORIZED, SESSION_OWNER, SESSION_BELONGS_TO + owner) if owner else None

    def owner_of_session(self, client_id: str, owner: str) -> str:
        """Return the owner of the session on this node if it is not this client; empty if it is this client, or if
        there is no session or no owner."""
        session = self._server.broker.sessions.get(client_id)
        return "" if session is None else owner_before(session, owner)

    # ------------------------------------------------ clients that could connect

    def _hypothetical(self, client_id: str, username: str | None, address: str, listener: str | None) -> ClientInfo:
        for key, text in (("clientid", client_id), ("username", username or "")):
            _check_text(key, text)
        if address and not is_local_user(address):
            try:
                address = str(unmapped(ip_address(address)))
            except ValueError:
                raise wrong("address", f"not an IP address: {address[:100]}") from None
        found = self._listener(listener)
        zone_name = found.settings.zone
        host, port = found.bind
        client = ClientInfo(
            self._calls.name, found.zone, zone_name, found.label, address, 0, port, found.loopback, client_id, username,
            sock_host=host,
        )  # fmt: skip
        client.proto_ver = V5
        return client

    def _listener(self, name: str | None) -> Listener:
        listeners = self._server.listeners
        for listener in listeners:
            if name is None or name in (identifier(listener), listener.label):
                return listener
        raise not_found("listener", (name or "")[:256])


def rule_text(rule: RuleSettings) -> str:
    """Return one access rule in one line."""
    who = {"username": rule.username, "client_id": rule.client_id, "address": rule.address, "listener": rule.listener}
    conditions = " ".join(
        ["anonymous clients"] * rule.anonymous + [f"{key}={value}" for key, value in who.items() if value is not None]
    )
    topics = ", ".join(rule.topics) or "every topic"
    return f"{'allow' if rule.allow else 'deny'} {rule.action} {topics}" + (f" for {conditions}" if conditions else "")


def _check_text(key: str, text: str) -> None:
    """Raise Refusal for a text that cannot be an MQTT string."""
    if len(text.encode("utf-8", "surrogatepass")) > _MAX_TEXT or "\0" in text or not _is_utf8(text):
        raise wrong(key, "no client can send this")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _words(refusal: Outcome) -> str:
    detail = refusal.detail or reason_codes.name(refusal.code).replace("_", " ")
    return detail if refusal.setting == "-" else f"{detail} (setting {refusal.setting})"


def _outcome_step(source: str, refusal: Outcome | None) -> AccessStep:
    if refusal is None:
        return AccessStep(source, "", False, None, "the zone allows it")
    return AccessStep(source, refusal.setting, True, "deny", _words(refusal))


def _login_step(source: str, refusal: Outcome | None, words: str = "allowed") -> LoginStepRecord:
    if refusal is None:
        return LoginStepRecord(source, "pass", words, "")
    return LoginStepRecord(source, "deny", refusal.detail, _shown(refusal.setting))


def _shown(setting: str) -> str:
    return "" if setting == "-" else setting


def _login(
    allowed: bool, code: int, reason: str, setting: str, client: ClientInfo, steps: list[LoginStepRecord]
) -> LoginExplained:
    superuser, anonymous = allowed and client.is_superuser, allowed and client.anonymous
    proved_by = client.proved_by if allowed and client.user else ""
    return LoginExplained(
        allowed,
        client.client_id,
        client.username,
        proved_by,
        reason,
        code,
        _shown(setting),
        superuser,
        anonymous,
        steps,
    )


_SILENT: Final[dict[str, str]] = {
    "superuser": "the client is not a superuser",
    "enable_acl": "the zone has access rules",
    "cache": "nothing is cached for this topic",
}
