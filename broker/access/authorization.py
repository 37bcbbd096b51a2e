"""Authorization: which topics clients may publish and subscribe to. Asks the sources of rules in order, and caches
decisions."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from ..config import AccessSettings
from ..loop.clock import Clock
from ..session.client_info import ClientInfo
from .acl import EVERYTHING, AclRuleSource, ReadRule, reads_some
from .acl_cache import AclCache
from .decision import ACL_DISABLED, IS_SUPERUSER, Decision, DecisionStep
from .outside import OutsideSource, Verdict
from .source import SourceParts

# Number of permissions of one client that are requested at the same time.
_MAX_QUESTIONS: Final = 16


class Authorization:
    """The first source with a matching rule decides; if there is none, the setting ``no_match`` does.

    ``asks``: whether an external service is among the sources. ``generation`` changes when the rules change: decisions
    of an earlier generation are invalid. ``on_change`` is called at each change."""

    def __init__(self, clock: Clock, on_change: Callable[[], None]) -> None:
        self.generation = 0
        self.sources: list[AclRuleSource | OutsideSource] = []
        self.asks = False
        self._added: list[AclRuleSource | OutsideSource] = []
        self._configured: list[AclRuleSource | OutsideSource] = []
        self.on_change = on_change
        self.settings: AccessSettings
        self._clock = clock
        # Names of sources whose rules come with a client's login; and whether any source is asked for superusers.
        self._of_login: frozenset[str] = frozenset()
        self._knows_superusers = False
        self._no_match: Decision
        self._cache = True

    def reload(self, settings: AccessSettings, parts: Sequence[SourceParts]) -> None:
        """``parts``: those of all active sources, in any order."""
        self.settings = settings
        self._no_match = Decision(settings.no_match == "allow", "access.no_match", ignored=True)
        self._cache = settings.cache
        self._of_login = frozenset([each.source.name for each in parts if each.source.of_login])
        self._knows_superusers = any(each.knows_superusers for each in parts)
        known = {each.source.name: each.authorizer for each in parts}
        self._configured = [source for name in settings.authorizers if (source := known.get(name)) is not None]
        self._join_sources()

    def add(self, source: AclRuleSource | OutsideSource) -> None:
        """Add a source of the embedding program: it is asked after earlier ones of this kind, and before those of the
        settings."""
        self._added.append(source)
        self._join_sources()
        self.forget_decisions()

    def _join_sources(self) -> None:
        self.sources = [*self._added, *self._configured]
        self.asks = any(isinstance(source, OutsideSource) for source in self.sources)

    def forget_decisions(self) -> None:
        """Invalidate the cached decisions of all clients, because rules have changed."""
        self.generation += 1
        self.on_change()

    def outside(self, name: str) -> OutsideSource:
        """Return the external source with this name."""
        return next(each for each in self.sources if isinstance(each, OutsideSource) and each.name == name)

    @property
    def unasked_setting(self) -> str:
        """Return the setting of the first external source, for a refusal because a service did not answer."""
        return next((source.setting for source in self.sources if isinstance(source, OutsideSource)), "-")

    @property
    def restricts(self) -> bool:
        """Whether any client could be refused anything."""
        if self.settings.no_match == "deny":
            return True
        return any(isinstance(source, OutsideSource) or source.has_rules for source in self.sources)

    def authorize(self, client: ClientInfo, action: str, topic: str, now: float | None = None) -> Decision | None:
        """Return whether the client may ``"publish"`` to a Topic Name or ``"subscribe"`` to a Topic Filter (shared or
        not).

        ``now``: Unix seconds, if the caller knows them. ``None``: an external service must be asked, with ``ask``."""
        exempt = _exempt(client, client.is_superuser)
        if exempt is not None:
            return exempt
        if not self._cache:
            return self._decide(client, action, topic)
        if now is None:
            now = self._clock.now()
        cache = client.acl_cache
        if not isinstance(cache, AclCache):
            settings = self.settings
            cache = client.acl_cache = AclCache(settings.cache_max_size, settings.cache_ttl, self.generation)
        elif cache.generation != self.generation:
            cache.clean()
            cache.size = self.settings.cache_max_size
            cache.ttl = self.settings.cache_ttl
            cache.generation = self.generation
        decision = cache.get(action, topic, now)
        if decision is not None:
            return decision
        decision = self._decide(client, action, topic)
        if decision is not None and decision.lasting:
            cache.put(action, topic, decision, now)
        return decision

    def authorize_absent(self, client: ClientInfo, action: str, topic: str, is_superuser: bool) -> Decision | None:
        """Decide for a client that is not connected. ``None``: the decision has to wait until it connects.

        ``is_superuser``: the current answer of ``Authentication``. External services are only asked about connected
        clients, and a token is sent with each login."""
        exempt = _exempt(client, is_superuser)
        if exempt is not None:
            return exempt
        decision = self._decide(client, action, topic, absent=True)
        if decision is None or decision.allowed:
            return decision
        return None if self._knows_superusers else decision

    def allows_some(self, client: ClientInfo, topic_filter: str) -> bool:
        """Return whether the client may read some of the topics that a filter can match, according to the sources in
        memory; False if an external service would have to be asked."""
        return reads_some(self._read_rules(client, topic_filter), topic_filter, self._no_match.allowed)

    def _read_rules(self, client: ClientInfo, topic_filter: str) -> Iterator[ReadRule]:
        for source in self.sources:
            if isinstance(source, OutsideSource):
                yield False, EVERYTHING
            else:
                yield from source.read_rules(client, topic_filter)

    def explain(
        self,
        client: ClientInfo,
        action: str,
        topic: str,
        steps: list[DecisionStep],
        verdicts: Mapping[str, Verdict] | None = None,
    ) -> Decision | None:
        """Return the result of ``authorize``, and add every part that is asked, in order, to ``steps``. Nothing is
        cached and no hit is counted. ``verdicts``: see ``ask_outside``."""
        exempt = _exempt(client, client.is_superuser)
        steps.append(DecisionStep("superuser", exempt if exempt is IS_SUPERUSER else None))
        if exempt is not IS_SUPERUSER:
            steps.append(DecisionStep("enable_acl", exempt))
        if exempt is not None:
            return exempt
        cache = client.acl_cache
        if self._cache and isinstance(cache, AclCache) and cache.generation == self.generation:
            kept = cache.look(action, topic, self._clock.now())
            steps.append(DecisionStep("cache", kept))
            if kept is not None:
                return kept
        return self._decide(client, action, topic, verdicts, steps=steps)

    def _decide(
        self,
        client: ClientInfo,
        action: str,
        topic: str,
        verdicts: Mapping[str, Verdict] | None = None,
        absent: bool = False,
        steps: list[DecisionStep] | None = None,
    ) -> Decision | None:
        """``verdicts``: the answers of external sources by name, if they were asked. ``None``: they must be asked."""
        for source in self.sources:
            verdict: Verdict | None = None
            if isinstance(source, OutsideSource):
                verdict = None if verdicts is None else verdicts.get(source.name)
                if verdict is None:
                    if steps is not None:
                        steps.append(DecisionStep(source.name, None, asked=False))
                    return None
                allowed = verdict.allowed
                decision = None if allowed is None else Decision(allowed, verdict.setting)
            elif absent and source.name in self._of_login:
                return None
            else:
                decision = source.decide(client, action, topic)
            if steps is not None:
                failure = "" if verdict is None else verdict.failure
                steps.append(DecisionStep(source.name, decision, failure=failure))
            if decision is not None:
                return decision
        if steps is not None:
            steps.append(DecisionStep("no_match", self._no_match))
        return self._no_match

    async def ask_outside(self, client: ClientInfo, action: str, topic: str) -> dict[str, Verdict]:
        """Return the answers of external sources by name, until one of them decides."""
        verdicts: dict[str, Verdict] = {}
        for source in self.sources:
            if isinstance(source, OutsideSource):
                verdict = verdicts[source.name] = await source.authorize(client, action, topic)
                if verdict.allowed is not None:
                    break
        return verdicts

    async def ask(self, client: ClientInfo, action: str, topics: Sequence[str]) -> list[Decision]:
        """Decide what ``authorize`` could not decide, several topics at a time. Lasting decisions are cached."""
        decisions: list[Decision] = []
        for start in range(0, len(topics), _MAX_QUESTIONS):
            some = topics[start : start + _MAX_QUESTIONS]
            decisions += await asyncio.gather(*[self._ask(client, action, topic) for topic in some])
        return decisions

    async def _ask(self, client: ClientInfo, action: str, topic: str) -> Decision:
        generation = self.generation
        decision: Decision | None = None
        verdicts: dict[str, Verdict] = {}
        while decision is None:  # again if a source was added in the meantime
            verdicts = await self.ask_outside(client, action, topic)
            # The other sources may have changed in the meantime, so all decide now.
            decision = self._decide(client, action, topic, verdicts)
        if any(verdict.failure for verdict in verdicts.values()):
            return Decision(decision.allowed, decision.setting, decision.ignored, lasting=False)
        cache = client.acl_cache
        if self._cache and isinstance(cache, AclCache) and generation == self.generation == cache.generation:
            cache.put(action, topic, decision, self._clock.now())
        return decision


def _exempt(client: ClientInfo, is_superuser: bool) -> Decision | None:
    """Return whether no rules apply to the client."""
    if is_superuser:
        return IS_SUPERUSER
    return None if client.zone.enable_acl else ACL_DISABLED
