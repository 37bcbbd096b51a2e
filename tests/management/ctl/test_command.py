"""How words become a command and its values, and what usages look like."""

import pytest

from taipan.management.ctl.command import (
    DASHES,
    Command,
    CommandCall,
    CommandResult,
    UsageError,
    find,
    key_line,
    overview,
    usage_line,
)
from taipan.management.ctl.index import COMMANDS
from taipan.management.ctl.output import json_text, printable
from taipan.management.operations.refusal import Refusal


def _nothing(call: CommandCall) -> CommandResult:
    return CommandResult(None, "ok")


TABLE = [
    Command("broker", "What", _nothing),
    Command("broker stats", "Gauges", _nothing),
    Command("users del <Login>", "Remove", _nothing),
    Command("data import <File> [--env <JSON>]", "Import", _nothing),
    Command("retainer clean [<Topic>]", "Clean", _nothing),
]


@pytest.mark.parametrize(
    "line, usage, values",
    [
        ("broker", "broker", {}),
        ("broker stats", "broker stats", {}),
        ("users del x", "users del <Login>", {"Login": "x"}),
        ("users delete x", "users del <Login>", {"Login": "x"}),
        ("users del del", "users del <Login>", {"Login": "del"}),
        ("data import /f", "data import <File> [--env <JSON>]", {"File": "/f"}),
        ("data import /f --env {}", "data import <File> [--env <JSON>]", {"File": "/f", "JSON": "{}"}),
        ("data import --env={} /f", "data import <File> [--env <JSON>]", {"File": "/f", "JSON": "{}"}),
        ("retainer clean", "retainer clean [<Topic>]", {}),
        ("retainer clean -x", "retainer clean [<Topic>]", {"Topic": "-x"}),
    ],
)
def test_words_are_found(line: str, usage: str, values: dict[str, str]) -> None:
    command, found = find(TABLE, line.split())
    assert (command.usage, found) == (usage, values)


@pytest.mark.parametrize(
    "line, lines",
    [
        ("broker nonsense", 2),
        ("users del", 1),
        ("users del x y", 1),
        ("users", 1),
        ("data import /f --env", 1),
        ("data import /f --env {} --env {}", 1),
        ("data import", 1),
        ("nonsense", 2),
        ("", 12),
    ],
)
def test_the_nearest_usage_is_told(line: str, lines: int) -> None:
    with pytest.raises(UsageError) as caught:
        find(TABLE, line.split())
    assert len(caught.value.lines) == lines


@pytest.mark.parametrize(
    "line, said",
    [
        ("clint list", 'unknown command "clint"; did you mean "clients"?'),
        ("xyz", 'unknown command "xyz"'),
        ("clients lst", 'unknown command "clients lst"; did you mean "list"?'),
        ("clients show", "clients list "),
    ],
)
def test_an_unknown_command_is_named_with_the_nearest(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        find(COMMANDS, line.split())
    assert caught.value.lines[0].startswith(said)


def test_usages_are_padded_to_70_columns_and_groups_are_apart() -> None:
    line = usage_line(TABLE[0])
    assert line.startswith("broker ") and line.index("#") == 70 and line.endswith("# What")
    lines = overview(TABLE)
    assert lines[0].startswith("Usage: taipan-ctl")
    assert lines.count("-" * 110) == 4 and DASHES == "-" * 110


def test_every_usage_fits_its_column_and_is_there_once() -> None:
    assert max(len(command.usage) for command in COMMANDS) <= 69
    assert len({command.words + (len(command.required),) for command in COMMANDS}) == len(COMMANDS)


def test_keys_are_cut_or_padded() -> None:
    assert key_line("version", "1", 10) == "version   : 1"
    assert key_line("messages.dropped.await_pubrel_timeout", 3, 30) == "messages.dropped.await_pubrel_: 3"


def test_nothing_that_a_terminal_obeys_goes_out() -> None:
    assert printable("a\x1b[2Jb\nc\u202e\x9b") == b"a\\x1b[2Jb\\nc\\u202e\\x9b\n"
    assert printable("ümlaut 温") == "ümlaut 温\n".encode()
    assert json_text({"k": "\x9b\u202eü\U000e0001"}) == '{"k":"\\u009b\\u202eü\\udb40\\udc01"}'.encode()


@pytest.mark.parametrize("value", ["", "x" * 65_536])
def test_values_are_names(value: str) -> None:
    with pytest.raises(Refusal):
        CommandCall(None, {"Login": value})  # type: ignore[arg-type]
