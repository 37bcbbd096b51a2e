"""The commands status, broker, vm and log: the node itself."""

from collections.abc import Iterator
from typing import Final, cast, get_args

from ..operations.log_view import MAX_LINES, Level, LogLinesQuery
from ..operations.modules import ModuleRecord, PluginRecord
from ..operations.runtime import runtime
from .command import CommandCall, CommandResult, Commands, key_line, word

commands = Commands()

_BROKER_WIDTH: Final = 10
_FIGURE_WIDTH: Final = 30
_VM_WIDTH: Final = 24


@commands.add("status", "Show whether the node is running")
def show_status(call: CommandCall) -> CommandResult:
    return CommandResult(
        call.operations.nodes.status(memory_text=False),
        lambda node: f"Node '{node.node}' {node.version} is started",
    )


@commands.add("broker", "Show the node's name, version and uptime")
def show_broker(call: CommandCall) -> CommandResult:
    keys = ("sysdescr", "version", "uptime", "datetime")
    return CommandResult(
        call.operations.nodes.broker(), lambda node: [key_line(key, getattr(node, key), _BROKER_WIDTH) for key in keys]
    )


@commands.add("broker stats", "Show the gauges and their maximum values")
def show_stats(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.monitoring.stats(), _figures)


@commands.add("broker metrics", "Show the counters")
def show_metrics(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.monitoring.metrics(), _figures)


def _figures(values: dict[str, int]) -> list[str]:
    return [key_line(key, values[key], _FIGURE_WIDTH) for key in sorted(values)]


async def _vm(call: CommandCall, *groups: str) -> CommandResult:
    values = await runtime(call.operations.nodes)
    if groups:
        values = {key: value for key, value in values.items() if key.partition("/")[0] in groups}
    return CommandResult(values, lambda found: [key_line(key, value, _VM_WIDTH) for key, value in found.items()])


@commands.add("vm", "Show the resources that the process uses")
async def show_vm(call: CommandCall) -> CommandResult:
    return await _vm(call)


@commands.add("vm <Group>", "Show one group: all, load, memory, process, io or ports")
async def show_vm_group(call: CommandCall) -> CommandResult:
    group = call.choice("Group", "all", "load", "memory", "process", "io", "ports")
    if group == "all":
        return await _vm(call)
    return await _vm(call, "cpu" if group == "load" else group)


@commands.add("modules list", "List the optional modules")
def list_modules(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.modules.records(), _module_lines)


def _module_lines(modules: list[ModuleRecord]) -> Iterator[str]:
    for each in modules:
        yield f"Module({each.name}, description={each.description}, active={word(each.active)})"


@commands.add("modules load <Module>", "Start a module on all nodes")
async def load_module(call: CommandCall) -> CommandResult:
    await call.operations.modules.load_everywhere(call["Module"])
    return CommandResult(None, f"Module {call['Module']} loaded successfully.")


@commands.add("modules unload <Module>", "Stop a module on all nodes")
async def unload_module(call: CommandCall) -> CommandResult:
    await call.operations.modules.unload_everywhere(call["Module"])
    return CommandResult(None, f"Module {call['Module']} unloaded successfully.")


@commands.add("modules reload <Module>", "Has no effect: no module needs to be reloaded")
def reload_module(call: CommandCall) -> CommandResult:
    call.operations.modules.reload(call["Module"])
    return CommandResult(None, f'Module: "{call["Module"]}" does not need to be reloaded.')


@commands.add("plugins list", "List the features that EMQX provides as plugins")
def list_plugins(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.modules.plugins(), _plugin_lines)


def _plugin_lines(plugins: list[PluginRecord]) -> Iterator[str]:
    for each in plugins:
        yield f"Plugin({each.name}, description={each.description}, active={word(each.active)})"


@commands.add("log set-level <Level> [<Logger>]", "Set the log level: debug, info, warning, error or critical")
def set_level(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.logs.set_level(call["Level"], call.get("Logger")), str)


@commands.add("log primary-level [<Level>]", "Show or set the level of all loggers")
def primary_level(call: CommandCall) -> CommandResult:
    level = call.get("Level")
    logs = call.operations.logs
    return CommandResult(logs.level() if level is None else logs.set_level(level), str)


@commands.add(
    "log show [--level <Level>] [--count <N>] [--like <Text>]",
    "Show the latest lines of the log: of this level or higher, with this text",
)
def show_log(call: CommandCall) -> CommandResult:
    level = "debug" if call.get("Level") is None else call.choice("Level", *get_args(Level))
    limit = 100 if call.get("N") is None else call.integer("N", 1, MAX_LINES)
    query = LogLinesQuery(level=cast(Level, level), like_text=call.get("Text") or "", limit=limit)
    found = call.operations.log_view.lines_here(query)
    return CommandResult(found.lines, lambda lines: [each.text for each in lines])


@commands.add("log list", "List the loggers with a level of their own")
def list_levels(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.logs.levels(), _level_lines)


@commands.add("log handlers list", "List the log handlers")
def list_handlers(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.logs.handlers(), _handler_lines)


@commands.add("log handlers set-level <HandlerId> <Level>", "Set the lowest level that a handler writes")
def set_handler_level(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.logs.set_handler_level(call["HandlerId"], call["Level"]), str)


def _level_lines(levels: list[dict[str, object]]) -> Iterator[str]:
    for each in levels:
        yield f"Logger(name={each['logger']}, level={each['level']})"


def _handler_lines(handlers: list[dict[str, object]]) -> Iterator[str]:
    for each in handlers:
        fields = ", ".join(f"{key}={each[key]}" for key in ("id", "level", "destination", "status"))
        yield f"LogHandler({fields})"
