"""How words become a command and its values, and what usages look like."""

import pytest

from taipan.management.ctl.command import (
    DASHES,
    Command,
    CommandCall,
    CommandResult,
    UsageError,
    complaint,
    find,
    key_line,
    not_found,
    overview,
    usage_line,
)
from taipan.management.ctl.index import COMMANDS
from taipan.management.ctl.output import json_text, printable
from taipan.management.operations.refusal import EXISTS, WRONG, Refusal


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
        ("broker nonsense", 3),
        ("users del", 2),
        ("users del x y", 2),
        ("users", 2),
        ("data import /f --env", 2),
        ("data import /f --env {} --env {}", 2),
        ("data import", 2),
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
        ("clint list", 'error: command clint: unknown; did you mean "clients"?'),
        ("xyz", "error: command xyz: unknown"),
        ("clients lst", 'error: command clients lst: unknown; did you mean "list"?'),
        ("clients", "error: command clients: a word is missing after it"),
        ("clients show", "error: command clients show: <ClientId> is missing"),
        ("acl add clientid c", "error: command acl add clientid: <Topic> <Action> <Access> are missing"),
        ("clients show a b", 'error: command clients show: unexpected argument "b"'),
        ("watch t --qos", "error: command watch: --qos <QoS>: the value is missing"),
        ("watch t --qos 1 --qos=2", "error: command watch: --qos is given twice"),
        ("log handlers set-level handler0", "error: command log handlers set-level: <Level> is missing"),
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


@pytest.mark.parametrize(
    "usage, values, refusal, said",
    [
        ("clients show <ClientId>", {"ClientId": "porch"}, not_found("client porch"), "client porch: not found"),
        ("users add <Login>", {"Login": "a\nb"}, Refusal(EXISTS, "user is there"), "user a\\nb: exists already"),
        ("acl del _all <Topic>", {"Topic": "t"}, not_found("rule"), "access rule _all: not found"),
        ("log set-level <Level>", {"Level": "x"}, Refusal(WRONG, "level: no"), "argument Level: no"),
        ("watch <Filter> [--qos <QoS>]", {"Filter": "t"}, Refusal(WRONG, "QoS: no"), "option --qos: no"),
        ("cluster leave", {}, Refusal(WRONG, "it has left already"), "command cluster leave: it has left already"),
        ("nothing <Name>", {"Name": "x"}, Refusal(WRONG, "a: b"), "command nothing: a: b"),
    ],
)
def test_errors_have_one_form(usage: str, values: dict[str, str], refusal: Refusal, said: str) -> None:
    assert complaint(Command(usage, "What", _nothing), values, refusal) == f"error: {said}"


def test_every_command_that_names_something_has_a_noun_for_it() -> None:
    """So that no error of it is about the command itself."""
    about_the_command = {
        command.words[0]
        for command in COMMANDS
        if command.required and command.subject(dict.fromkeys(command.required, "x")).startswith("command ")
    }
    # A level, a group of figures, a list, and what has no name yet.
    assert about_the_command == {"log", "vm", "top", "rules", "resources"}
