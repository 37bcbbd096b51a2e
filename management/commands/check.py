"""``taipan check [--connect] FILE | -``: checks whether a configuration is valid, and the certificates that it
names."""

import argparse
import asyncio

from taipan.broker.config import BrokerSettings
from taipan.broker.observability.log_text import one_line

from .. import configuration_check
from ..configuration.config import load
from ..configuration.config_document import ConfigError
from .set_option import add_set_option


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "check", help="validate a configuration file and its certificates"
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="configuration file, or - for standard input; can also be given with --config",
    )
    parser.add_argument(
        "--connect", action="store_true", help="also connect to the NATS servers in [cluster], as a node does"
    )
    add_set_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print that the file is valid. Raises ConfigError, or ArgumentError unless one file is given."""
    if (arguments.file is None) == (arguments.config is None):
        raise argparse.ArgumentError(None, "check requires one FILE (-: the input)")
    file = arguments.file or arguments.config
    settings = load(file, arguments.set + arguments.more)
    wrong = configuration_check.faults(settings)
    if wrong:
        raise ConfigError(*wrong)
    nats = f"; NATS: {_connect(settings.broker)}" if arguments.connect else ""
    print(f"{file}: ok{nats}")
    return 0


def _connect(settings: BrokerSettings) -> str:
    """Return the answers of the NATS servers of ``[cluster]`` in one line. Raises ConfigError."""
    if settings.cluster is None:
        raise ConfigError("--connect: the configuration has no [cluster]")
    # Imported here, because a node without a cluster needs no NATS client.
    try:
        from taipan.broker.cluster.nats import NatsRefused
        from taipan.broker.cluster.nats_client import NatsClient, largest_packet
    except ImportError as error:
        raise ConfigError(f"[cluster]: {error}: pip install nkeys") from None

    client = NatsClient(settings.cluster, settings.node.name, largest_packet(settings))
    try:
        return asyncio.run(client.probe())
    except NatsRefused as error:
        raise ConfigError(one_line(str(error))) from None
