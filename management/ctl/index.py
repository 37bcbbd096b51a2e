"""All commands, in the order in which ``help`` shows them."""

from typing import Final

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
from .command import Command, CommandCall, CommandResult, Commands, overview

commands = Commands()


@commands.add("help", "Show this")
def show_help(call: CommandCall) -> CommandResult:
    return CommandResult(
        [{"command": each.usage, "description": each.summary} for each in COMMANDS], lambda _: overview(COMMANDS)
    )


commands.add_here("profiles", "List the nodes that --profile names")


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
