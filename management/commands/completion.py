"""``taipan completion SHELL`` and ``taipan manual COMMAND``: completion and man pages of ``taipan`` and ``taipan-ctl``.

Both are generated from the commands (``command_tree``)."""

import argparse
import datetime
import os
from collections.abc import Callable
from typing import Final

from taipan.broker.version import product_version

from . import command_tree
from .command_tree import Words

PROGRAMS: Final = ("taipan", "taipan-ctl")


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    completion: argparse.ArgumentParser = commands.add_parser(
        "completion", help="print a shell completion script for taipan and taipan-ctl",
        description="bash: source <(taipan completion bash). zsh: taipan completion zsh > DIRECTORY-OF-FPATH/_taipan. "
        "fish: taipan completion fish > ~/.config/fish/completions/taipan.fish",
    )  # fmt: skip
    completion.add_argument("shell", metavar="SHELL", choices=sorted(SHELLS), help="bash, fish or zsh")
    completion.set_defaults(run=_complete, refuses=("config", "set"))
    manual: argparse.ArgumentParser = commands.add_parser(
        "manual", help="print the man page of a command",
        description="taipan manual taipan-ctl | man -l -",
    )  # fmt: skip
    manual.add_argument("program", metavar="COMMAND", choices=PROGRAMS, help="taipan or taipan-ctl")
    manual.set_defaults(run=_manual, refuses=("config", "set"))


def trees(root: argparse.ArgumentParser) -> dict[str, Words]:
    return {"taipan": command_tree.of_parser(root), "taipan-ctl": command_tree.of_ctl()}


def _complete(arguments: argparse.Namespace) -> int:
    print(SHELLS[arguments.shell](trees(arguments.parser)), end="")
    return 0


def _manual(arguments: argparse.Namespace) -> int:
    built = os.environ.get("SOURCE_DATE_EPOCH")
    day = datetime.datetime.fromtimestamp(int(built), datetime.UTC) if built else datetime.datetime.now(datetime.UTC)
    print(manual_page(arguments.program, trees(arguments.parser)[arguments.program], day.date()), end="")
    return 0


# ---------------------------------------------------------------------- shells


def _candidates(words: Words) -> list[tuple[str, str]]:
    """Return the words that may come next, each with its meaning: words first, then options."""
    found = [(word, below.summary) for word, below in words.words.items()]
    return found + [(name, option.summary) for option in words.options for name in option.names]


def _short(text: str) -> str:
    """Return one line without characters that are special in shells."""
    return " ".join(text.replace("'", "").replace("\\", "").replace("`", "").replace("$", "").split())


def _function(program: str) -> str:
    return "_" + program.replace("-", "_")


def bash(programs: dict[str, Words]) -> str:
    lines = ["# Completes taipan and taipan-ctl: source <(taipan completion bash)"]
    for program, tree in programs.items():
        cases = [
            f"        '{' '.join(path)}') echo '{' '.join(word for word, _ in _candidates(words))}' ;;"
            for path, words in tree.all()
        ]
        name = _function(program)
        lines += [
            f"{name}_words() {{", '    case "$1" in', *cases, "    esac", "}",
            f"{name}() {{",
            '    local path="" word i',
            "    for ((i = 1; i < COMP_CWORD; i++)); do",
            "        word=${COMP_WORDS[i]}",
            f'        case " $({name}_words "$path") " in',
            '            *" $word "*) [[ $word == -* ]] || path=${path:+$path }$word ;;',
            "        esac",
            "    done",
            f'    COMPREPLY=($(compgen -W "$({name}_words "$path")" -- "${{COMP_WORDS[COMP_CWORD]}}"))',
            "}",
            f"complete -o default -F {name} {program}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def zsh(programs: dict[str, Words]) -> str:
    lines = [f"#compdef {' '.join(programs)}", "# taipan completion zsh"]
    for program, tree in programs.items():
        name = _function(program)
        lines += [f"{name}_words() {{", '    case "$1" in']
        for path, words in tree.all():
            shown = [f"'{word.replace(':', chr(92) + ':')}:{_short(summary)}'" for word, summary in _candidates(words)]
            lines.append(f"        '{' '.join(path)}') found=({' '.join(shown)}) ;;")
        lines += ["        *) found=() ;;", "    esac", "}"]
        lines += [
            f"{name}() {{",
            '    local at="" word i',
            "    local -a found",
            "    for ((i = 2; i < CURRENT; i++)); do",
            "        word=${words[i]}",
            f'        {name}_words "$at"',
            '        if [[ $word != -* && -n ${(M)found:#${word}:*} ]]; then at="${at:+$at }$word"; fi',
            "    done",
            f'    {name}_words "$at"',
            "    _describe -t words word found || _files",
            "}",
        ]
    lines += ['case "$service" in', *(f"    {program}) {_function(program)} ;;" for program in programs), "esac"]
    return "\n".join(lines) + "\n"


def fish(programs: dict[str, Words]) -> str:
    lines = ["# taipan completion fish > ~/.config/fish/completions/taipan.fish"]
    for program, tree in programs.items():
        name = _function(program)
        paths = " ".join(f"'{' '.join(path)}'" for path, _ in tree.all() if path)
        lines += [
            f"function {name}_at",
            f"    set -l known {paths}",
            '    set -l path ""',
            "    for word in (commandline -opc)[2..-1]",
            '        set -l next (string trim -- "$path $word")',
            "        if contains -- $next $known",
            "            set path $next",
            "        end",
            "    end",
            '    test "$path" = "$argv[1]"',
            "end",
        ]
        for path, words in tree.all():
            at = f"complete -c {program} -n '{name}_at \"{' '.join(path)}\"'"
            lines += [f"{at} -f -a {word} -d '{_short(below.summary)}'" for word, below in words.words.items()]
            for option in words.options:
                flags = " ".join(
                    f"-l {each[2:]}" if each.startswith("--") else f"-s {each[1:]}" for each in option.names
                )
                lines.append(f"{at} {flags}{' -r' if option.value else ''} -d '{_short(option.summary)}'")
    return "\n".join(lines) + "\n"


SHELLS: Final[dict[str, Callable[[dict[str, Words]], str]]] = {"bash": bash, "fish": fish, "zsh": zsh}


# ---------------------------------------------------------------------- manual


def manual_page(program: str, tree: Words, day: datetime.date) -> str:
    """Return a man page in the language of man(7)."""
    lines = [
        f'.TH {program.upper()} 1 "{day.isoformat()}" "Taipan {product_version()}" "User Commands"',
        ".SH NAME",
        f"{program} \\- {_roff(tree.summary)}",
        ".SH SYNOPSIS",
        f".B {_roff(program)}",
        "[OPTION]... [COMMAND [ARGUMENT]...]",
        ".SH OPTIONS",
        *_options(tree),
        ".SH COMMANDS",
    ]
    for path, words in tree.all():
        if path and (words.summary or words.options):
            lines += [".TP", f".B {_roff(' '.join(path))} {_roff(words.arguments)}".rstrip(), _roff(words.summary)]
            if words.options:
                lines += [".RS", *_options(words), ".RE"]
    return "\n".join(lines) + "\n"


def _options(words: Words) -> list[str]:
    lines = []
    for option in words.options:
        flags = ", ".join(option.names) + (f" {option.value}" if option.value else "")
        lines += [".TP", f".B {_roff(flags)}", _roff(option.summary)]
    return lines


def _roff(text: str) -> str:
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
