"""``taipan migrate BROKER FILE --into DIR``: a configuration and a store from the data of another broker."""

import argparse
from pathlib import Path


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    migrate = commands.add_parser(
        "migrate", help="convert the configuration and data of another broker"
    ).add_subparsers(dest="source", metavar="BROKER", required=True)
    for name, path, what in (
        ("mosquitto", "MOSQUITTO_CONF", "mosquitto.conf; the files that it refers to are read too"),
        ("emqx", "FILE_OR_DIR", "an EMQX 4.x export, or the EMQX directory etc"),
        ("amqtt", "BROKER_YAML", "the aMQTT configuration"),
    ):
        each = migrate.add_parser(name, help=f"from {what}")
        each.add_argument("from_path", metavar=path, type=Path, help=what)
        each.add_argument(
            "--into", metavar="DIR", type=Path, required=True, help="output directory; must be empty or not exist"
        )
        each.add_argument("--json", action="store_true", help="print the report as JSON")
        each.set_defaults(run=run, refuses=("config", "set"))


def run(arguments: argparse.Namespace) -> int:
    # Imported here, because only this command reads and writes these files.
    from ..migrate import command

    return command.run(arguments.source, arguments.from_path, arguments.into, arguments.json)
