"""AlarmNotifier: sends the node's alarms to the targets.

Each target has a task of its own, which sends one notice after the other: a target that does not answer delays only
itself, and no alarm waits for a target."""

import asyncio
import logging
import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from taipan.broker.loop.timers import Timer
from taipan.broker.observability.alarms import Alarm
from taipan.broker.server import Server
from taipan.ruleengine.network.allowed_networks import Networks

from .kinds import Config
from .notice import Event, Notice
from .outbox import Outbox, State
from .senders import NoticeSender, NotSent, Publish, sender_of

logger = logging.getLogger(__name__)

CHECK_EVERY: Final = 1.0
"""Seconds between two checks of silences that have ended."""


class TargetStatus(msgspec.Struct):
    """What a node has sent to a target since the node started, or the target was enabled. ``state``: ``ready``,
    ``sending``, ``failing`` (the last attempt failed, the next one follows) or ``disabled``. ``waiting``: notices that
    wait. ``dropped``: notices that were given up. Times: Unix milliseconds, null: never."""

    node: str
    state: str
    sent: int
    failed: int
    dropped: int
    waiting: int
    last_sent_at: int | None
    last_error: str
    last_error_at: int | None


class Silence(msgspec.Struct, frozen=True):
    """``alarms``: a pattern of alarm names. ``until``: Unix seconds."""

    alarms: str
    until: float


class AlarmNotifier:
    """The targets of this node. ``start`` when the node serves clients, ``stop`` before it stops."""

    def __init__(self, server: Server, refused_networks: Iterable[str], publish: Publish) -> None:
        self._server = server
        self._networks = Networks(refused_networks)
        self._publish = publish
        self._targets: dict[str, _Target] = {}
        self._silences: list[Silence] = []
        # Active alarms that a silence keeps back; they are sent when it ends.
        self._held: set[str] = set()
        # Unix seconds when the next silence ends: until then, silenced notices are held back.
        self._next_end = 0.0
        self._running = False

    def start(self) -> None:
        """Send the active alarms, and all alarms from now on."""
        self._running = True
        self._server.alarms.observers.append(self._changed)
        self._server.ticker.every(CHECK_EVERY, self._check_silences)
        for name in self._server.alarms.active:
            if self._is_silent(name):
                self._held.add(name)
        for target in self._targets.values():
            self._begin(target)

    async def stop(self) -> None:
        """Stop sending. Notices that wait are lost; the next start sends the alarms that are active then."""
        if self._running:
            self._running = False
            self._server.alarms.observers.remove(self._changed)
            self._server.ticker.remove(self._check_silences)
        targets, self._targets = list(self._targets.values()), {}
        await asyncio.gather(*(target.stop() for target in targets))

    def put(self, name: str, alarms: list[str], config: Config) -> None:
        """Add or replace an enabled target. A new target receives the active alarms. If a target is replaced, its
        waiting notices are sent with the new configuration."""
        sender = sender_of(config, self._networks, self._publish)
        target = self._targets.get(name)
        if target is not None:
            target.change(alarms, sender)
            return
        target = self._targets[name] = _Target(self._server, name, alarms, sender)
        if self._running:
            self._begin(target)

    def remove(self, name: str) -> None:
        """Delete or disable a target, with its waiting notices."""
        target = self._targets.pop(name, None)
        if target is not None:
            target.cancel()

    def silence(self, silences: list[Silence]) -> None:
        """Apply these silences instead of the previous ones. They apply to alarms that are raised from now on."""
        self._silences = silences
        self._next_end = 0.0
        if self._running:
            self._check_silences(0.0)

    def status(self, name: str) -> TargetStatus:
        """Return the status of a target on this node."""
        target = self._targets.get(name)
        if target is None:
            return TargetStatus(self._server.settings.node.name, "disabled", 0, 0, 0, 0, None, "", None)
        return target.status()

    async def test(self, config: Config, text: str) -> str:
        """Send a test notice now, past the waiting ones. Return a warning or "". Raises NotSent."""
        alarm = Alarm("test", text, {}, self._server.clock.now())
        notice = self._notice("test", alarm)
        return await sender_of(config, self._networks, self._publish).send(notice)

    # ------------------------------------------------------------------ alarms

    def _begin(self, target: "_Target") -> None:
        target.start()
        for name, alarm in self._server.alarms.active.items():
            if name not in self._held:
                target.put(self._notice("activated", alarm))

    def _changed(self, alarm: Alarm) -> None:
        """Handle that an alarm was activated or deactivated."""
        if alarm.deactivate_at is None:
            if self._is_silent(alarm.name):
                self._held.add(alarm.name)
                self._next_end = 0.0
            else:
                self._put(self._notice("activated", alarm))
        elif alarm.name in self._held:
            self._held.remove(alarm.name)  # no target knows of it
        else:
            self._put(self._notice("deactivated", alarm))

    def _check_silences(self, now: float) -> None:
        """Send the active alarms whose silence has ended."""
        wall = self._server.clock.wall()
        if not self._held or wall < self._next_end:
            return
        self._next_end = min((each.until for each in self._silences if each.until > wall), default=math.inf)
        for name in [name for name in self._held if not self._is_silent(name)]:
            self._held.remove(name)
            alarm = self._server.alarms.active.get(name)
            if alarm is not None:
                self._put(self._notice("activated", alarm))

    def _is_silent(self, name: str) -> bool:
        now = self._server.clock.wall()
        return any(each.until > now and matches(each.alarms, name) for each in self._silences)

    def _put(self, notice: Notice) -> None:
        for target in self._targets.values():
            target.put(notice)

    def _notice(self, event: Event, alarm: Alarm) -> Notice:
        clock = self._server.clock
        record: dict[str, Any] = alarm.record(clock.now(), clock.skew)
        return Notice(event, self._server.settings.node.name, record)


def matches(pattern: str, name: str) -> bool:
    """Return whether an alarm's name matches: ``*`` stands for any text, ``?`` for a character."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


class _Target:
    """One target: its outbox, and the task that empties it."""

    def __init__(self, server: Server, name: str, alarms: list[str], sender: NoticeSender) -> None:
        self._server = server
        self._name = name
        self._alarms = alarms
        self._sender = sender
        self._outbox = Outbox()
        self._wake = asyncio.Event()
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None
        self._sent = self._failed = 0
        self._sent_at: float | None = None
        self._error = ""
        self._error_at: float | None = None
        self._log_failure = True

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    async def stop(self) -> None:
        self.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def change(self, alarms: list[str], sender: NoticeSender) -> None:
        self._alarms, self._sender = alarms, sender
        self._outbox.at_once()
        self._wake.set()

    def put(self, notice: Notice) -> None:
        if any(matches(each, notice.name) for each in self._alarms):
            dropped = self._outbox.put(notice, self._server.clock.now())
            if dropped is not None:
                self._tell_dropped(dropped, "too_many")
            self._wake.set()

    def status(self) -> TargetStatus:
        outbox = self._outbox
        state = {State.READY: "ready", State.SENDING: "sending", State.PAUSING: "failing"}[outbox.state]
        if state == "sending" and not self._log_failure:
            state = "failing"  # until an attempt succeeds
        return TargetStatus(
            self._server.settings.node.name, state, self._sent, self._failed, outbox.dropped, len(outbox),
            _milliseconds(self._sent_at), self._error, _milliseconds(self._error_at),
        )  # fmt: skip

    async def _run(self) -> None:
        clock = self._server.clock
        while True:
            self._wake.clear()
            notice = self._outbox.next(clock.now())
            if notice is not None:
                await self._send(notice)
                continue
            due_at = self._outbox.due_at()
            if due_at is not None:
                self._timer = self._server.timers.at(due_at, self._wake.set)
            await self._wake.wait()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def _send(self, notice: Notice) -> None:
        clock = self._server.clock
        try:
            warning = await self._sender.send(notice)
        except NotSent as error:
            reason = str(error)
        except Exception as error:  # a bug must not end the target
            logger.exception("alarm_target_error target=%s error=%s", self._name, error)
            reason = type(error).__name__
        else:
            self._outbox.sent(clock.now())
            self._sent += 1
            self._sent_at = clock.wall()
            if warning:
                self._error, self._error_at = warning, clock.wall()
            if not self._log_failure:
                logger.info("alarm_target_recovered target=%s", self._name)
                self._log_failure = True
            return
        self._failed += 1
        self._error, self._error_at = reason, clock.wall()
        if self._log_failure:
            logger.warning("alarm_target_failing target=%s error=%s", self._name, reason)
            self._log_failure = False
        given_up = self._outbox.failed(clock.now())
        if given_up is not None:
            self._tell_dropped(given_up, "given_up")

    def _tell_dropped(self, notice: Notice, reason: str) -> None:
        self._server.metrics.refusals.add("alarm_notice_dropped")
        logger.warning(
            "alarm_notice_dropped target=%s alarm=%s event=%s reason=%s", self._name, notice.name, notice.event, reason
        )


def _milliseconds(at: float | None) -> int | None:
    return None if at is None else round(at * 1000)
