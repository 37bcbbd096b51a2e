"""The option ``--set KEY=VALUE`` of a subcommand."""

import argparse


def add_set_option(parser: argparse.ArgumentParser) -> None:
    """Add the option; the values are in ``more``, after those of the program's own ``--set``."""
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="more",
        help="set one key; overrides the file and the environment",
    )
