"""The commands ``taipan`` and ``taipan-ctl`` as trees of words, derived from their definitions."""

import argparse
import re
from dataclasses import dataclass, field
from typing import Final

_LITERAL: Final = re.compile(r"[a-z][\w-]*(?:\|[a-z][\w-]*)*")
_CTL_OPTIONS: Final = (
    ("--data-dir", "DIR", "data directory of the node; found automatically by default"),
    ("--config", "FILE", "configuration file of the node, which names its data directory"),
    ("--url", "URL", "the HTTP API of a remote node"),
    ("--profile", "NAME", "a remote node, by the name that profiles lists"),
    ("--app", "ID:SECRET", "the application; other users can see it in the process list"),
    ("--app-file", "FILE", "a file with the application"),
    ("--cafile", "FILE", "authorities that may have signed the certificate of --url"),
    ("--timeout", "SECONDS", "how long to wait for the node"),
    ("--json", "", "print JSON"),
    ("--version", "", "print the version"),
)


@dataclass
class Option:
    """``value``: the argument of the option in capitals, empty if it has none."""

    names: list[str]
    value: str
    summary: str


@dataclass
class Words:
    """The words that may follow a word. ``arguments``: placeholders as in the usage, for words that are not fixed."""

    summary: str = ""
    arguments: str = ""
    options: list[Option] = field(default_factory=list)
    words: dict[str, "Words"] = field(default_factory=dict)

    def all(self, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], "Words"]]:
        """Yield this node and everything below it, with the words that lead there."""
        found = [(path, self)]
        for word, below in self.words.items():
            found += below.all((*path, word))
        return found


def of_parser(parser: argparse.ArgumentParser, summary: str = "") -> Words:
    """Return the tree of an argparse parser and its subparsers. argparse has no public way to list what a parser
    accepts."""
    tree = Words(summary or parser.description or "")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            for name, below in action.choices.items():
                tree.words[name] = of_parser(below, helps.get(name, ""))
        elif action.option_strings:
            value = "" if action.nargs == 0 else str(action.metavar or action.dest).upper()
            tree.options.append(Option(list(action.option_strings), value, _help(action)))
        else:
            tree.arguments = f"{tree.arguments} {action.metavar or action.dest}".strip()
            for choice in action.choices or ():
                tree.words[str(choice)] = Words()
    return tree


def _help(action: argparse.Action) -> str:
    return "" if action.help in (None, argparse.SUPPRESS) else str(action.help)


def of_ctl() -> Words:
    """Return the tree of ``taipan-ctl``."""
    # Imported here: otherwise every command of taipan would have to import it.
    from ..ctl.index import COMMANDS

    tree = Words("The control command of a running node.")
    tree.options = [Option([name], value, summary) for name, value, summary in _CTL_OPTIONS]
    for command in COMMANDS:
        literal = []
        rest = command.usage.split()
        while rest and _LITERAL.fullmatch(rest[0]):
            literal.append(rest.pop(0).split("|"))
        for path in _each(literal):
            at = tree
            for word in path:
                at = at.words.setdefault(word, Words())
            at.summary, at.arguments = command.summary, " ".join(rest)
    return tree


def _each(alternatives: list[list[str]]) -> list[list[str]]:
    paths: list[list[str]] = [[]]
    for words in alternatives:
        paths = [[*path, word] for path in paths for word in words]
    return paths
