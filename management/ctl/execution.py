"""The node's side of one command, over the socket or HTTP: find it, execute it, write the answer and the exit
status."""

import asyncio
import inspect
import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from taipan.broker.observability.masking import MASK, is_secret

from ..operations.caller import NOBODY, Caller
from ..operations.node_calls import NodeDoesNotAnswer
from ..operations.operations import Operations
from ..operations.refusal import UNKNOWN, WRONG, Refusal
from .changed_objects import object_before
from .command import AnswerEnded, Command, CommandCall, CommandResult, UsageError, complaint, find
from .index import COMMANDS
from .main import DONE, FAILED, USAGE
from .output import Gone, Output

logger = logging.getLogger(__name__)

KEEPALIVE_INTERVAL: Final = 5.0
"""Seconds between two keepalives while a command runs."""
_INTERNAL: Final = "internal error; see the node's log"


_READING: Final = frozenset(
    ["list", "show", "status", "lookup", "info", "topics", "test", "verify", "stats", "metrics"]
)
"""Last words of commands that change nothing."""
_READING_COMMANDS: Final = frozenset(
    [
        "alarms targets", "broker", "cluster replicas", "vm", "listeners", "watch", "publish", "top", "help",
        "profiles", "data loss", "data export", "backup create", "resources dead-letters", "explain client",
        "explain topic", "explain delivery", "acl show clientid", "acl show username", "acl show _anonymous",
        "acl show _all",
    ]
)  # fmt: skip
_SECRETS: Final = frozenset({"JSON", "Config"})
"""Arguments that may contain secrets anywhere."""


def is_recorded(command: Command, values: Mapping[str, str]) -> bool:
    """Return whether a command is recorded in the audit: it changes something."""
    words = " ".join(command.words)
    if words == "log primary-level":
        return bool(values)
    return words not in _READING_COMMANDS and command.words[-1] not in _READING


def _shown(name: str, text: str) -> object:
    """Return an argument for the audit, which masks the secrets of objects: JSON is decoded, because text has none that
    it would recognise."""
    if name in _SECRETS or is_secret(name):
        return MASK
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return MASK


class ControlRequest(msgspec.Struct):
    """The words of a command of `taipan-ctl`, and whether its answer is JSON."""

    args: list[str]
    json: bool = False


async def carry_out(operations: Operations, request: ControlRequest, output: Output, caller: Caller = NOBODY) -> None:
    """Run a command. ``caller``: the application that uses HTTP; ``NOBODY`` for the socket. Raises Gone if the caller
    has disconnected."""
    status = await _run(operations, request, output, caller)
    await output.end(status)


async def _run(operations: Operations, request: ControlRequest, output: Output, caller: Caller) -> int:
    """Run the command and write the answer; return the exit status."""
    try:
        command, values = find(COMMANDS, request.args)
    except UsageError as error:
        if request.json:
            await output.json_error(WRONG, str(error))
        else:
            for line in error.lines:
                await output.line(line, error=True)
        return USAGE
    status = DONE
    try:
        call = CommandCall(operations, values, caller.name, caller.ended)
        before = await object_before(operations, command, values) if is_recorded(command, values) else None
        try:
            answer = await _finish(command.run(call), output)
        except NodeDoesNotAnswer:  # the others have made the change, and this one may have
            await _record(operations, command, values, caller, before)
            raise
        await _record(operations, command, values, caller, before)
        await output.answer(answer, request.json)
    except AnswerEnded as ended:
        status = FAILED
        if request.json:
            await output.json_error(ended.code, ended.message)
        else:
            await output.line(complaint(command, values, ended), error=True)
    except Refusal as refusal:
        status = FAILED
        if request.json:
            await output.json({"code": refusal.code, "message": refusal.message})
        else:
            await output.line(complaint(command, values, refusal))
    except Gone:
        raise
    except Exception:
        # A bug: the log has the traceback, the answer does not.
        logger.exception("control_error command=%s", " ".join(command.words))
        status = FAILED
        if request.json:
            await output.json_error(UNKNOWN, _INTERNAL)
        else:
            await output.line(f"error: {command.subject(values)}: {_INTERNAL}", error=True)
    logger.debug("control_command command=%s status=%s app_id=%s", " ".join(command.words), status, caller.name)
    return status


async def _record(
    operations: Operations, command: Command, values: Mapping[str, str], caller: Caller, before: object
) -> None:
    """Record a command in the audit, if it changes something; return when it is on disk."""
    if is_recorded(command, values):
        shown = {name: _shown(name, text) for name, text in values.items()}
        words, subject = " ".join(command.words), command.subject(values)
        target = "" if subject.startswith("command ") else subject
        await operations.audit.record("ctl", caller.name, caller.address, words, target, before, shown)


async def _finish(outcome: object, output: Output) -> CommandResult:
    """Send the result, waiting for it if necessary; keepalives are sent while it waits."""
    if inspect.isawaitable(outcome):
        task = asyncio.ensure_future(outcome)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=KEEPALIVE_INTERVAL)
                if not task.done():
                    await output.keepalive()
        except asyncio.CancelledError:
            task.cancel()
            raise
        outcome = task.result()
    if not isinstance(outcome, CommandResult):
        raise TypeError(f"a command answered {outcome!r}")
    return outcome
