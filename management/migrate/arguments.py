"""The arguments of ``taipan migrate``; without what it reads and writes with."""

import argparse
from pathlib import Path


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The subcommands and their arguments."""
    migrate = commands.add_parser(
        "migrate", help="write a configuration, and a store, from what another broker has"
    ).add_subparsers(dest="source", metavar="BROKER", required=True)
    for name, path, what in (
        ("mosquitto", "MOSQUITTO_CONF", "mosquitto.conf; files that it names are read, too"),
        ("emqx", "FILE_OR_DIR", "an export of EMQX 4.x, or its directory etc"),
        ("amqtt", "BROKER_YAML", "the configuration of aMQTT"),
    ):
        each = migrate.add_parser(name, help=f"from {what}")
        each.add_argument("from_path", metavar=path, type=Path, help=what)
        each.add_argument(
            "--into", metavar="DIR", type=Path, required=True, help="what is made; must be empty or not there"
        )
        each.add_argument("--json", action="store_true", help="print the report as JSON")
