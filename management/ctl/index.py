"""All commands, in the order in which ``help`` shows them."""

from typing import Final

from ..operations.refusal import WRONG
from . import (
    access_commands,
    app_commands,
    client_commands,
    cluster_commands,
    data_commands,
    live_commands,
    node_commands,
    rule_commands,
    traffic_commands,
    watch_commands,
)
from .command import Command, CommandCall, CommandResult, Commands, Failure, UsageError, overview, usage_line, usages_of

commands = Commands()


@commands.add("help [<Command>]", "Show all commands, or those that begin with a word")
def show_help(call: CommandCall) -> CommandResult:
    word = call.get("Command")
    try:
        found = COMMANDS if word is None else usages_of(word, COMMANDS)
    except UsageError as error:
        raise Failure(WRONG, error.problem, "unknown" + error.problem.partition(": unknown")[2]) from None
    return CommandResult(
        [{"command": each.usage, "description": each.summary} for each in found],
        lambda _: help_lines(word),
    )


def help_lines(word: str | None = None) -> list[str]:
    """Return the usages of all commands, or of those that begin with this word. Raises UsageError if there are none."""
    return overview(COMMANDS) if word is None else [usage_line(each) for each in usages_of(word, COMMANDS)]


commands.add_here("profiles", "List the nodes that --profile can name")


COMMANDS: Final[list[Command]] = [
    command
    for each in (
        node_commands.commands,
        cluster_commands.commands,
        client_commands.commands,
        traffic_commands.commands,
        access_commands.commands,
        app_commands.commands,
        watch_commands.commands,
        live_commands.commands,
        rule_commands.commands,
        data_commands.commands,
        commands,
    )
    for command in each.all
]
