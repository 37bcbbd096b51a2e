"""``taipan hash-password [--user NAME] [--scram]``: prints the hash of a password in the form for
``[[access.users]]``."""

import argparse
import getpass
import sys

from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.saslprep import saslprep
from taipan.broker.access.scram import ScramVerifier


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser: argparse.ArgumentParser = commands.add_parser("hash-password", help="hash a password for the configuration")
    parser.add_argument("--user", metavar="NAME", help="print a complete [[access.users]] table")
    parser.add_argument("--scram", action="store_true", help="also print the keys for SCRAM-SHA-256")
    parser.set_defaults(run=run, refuses=("config",))


def run(arguments: argparse.Namespace) -> int:
    """Read the password from the terminal, or from the first line of the input. Return 1 if there is no valid one."""
    user: str | None = arguments.user
    if sys.stdin.isatty():
        try:
            password = getpass.getpass("Password: ")
            again = getpass.getpass("Again: ")
        except (EOFError, KeyboardInterrupt):
            print("\ntaipan: no password was given", file=sys.stderr)
            return 1
        if again != password:
            print("taipan: the two passwords differ", file=sys.stderr)
            return 1
    else:
        password = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not password:
        print("taipan: the password is empty", file=sys.stderr)
        return 1
    try:
        encoded = password.encode("utf-8")
        if arguments.scram and user is not None and saslprep(user, stored=True) != user:
            raise ValueError("with --scram the username must be in SASLprep form")
        keys = ScramVerifier.create(password) if arguments.scram else None
    except ValueError as error:
        print(f"taipan: {error}", file=sys.stderr)
        return 1
    if user is not None:
        quoted = user.replace("\\", "\\\\").replace('"', '\\"')
        if not user or not user.isprintable():
            print("taipan: the username is empty or not printable", file=sys.stderr)
            return 1
        print(f'[[access.users]]\nusername = "{quoted}"')
    print(f'password_hash = "{ScryptHash.create(encoded)}"')
    if keys is not None:
        print(f'scram = "{keys}"')
    return 0
