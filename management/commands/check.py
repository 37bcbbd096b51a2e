"""``taipan check [--connect] FILE | -``: checks whether a configuration is valid, and the certificates that it names;
with ``--connect``, also whether the servers that it names can be reached."""

import argparse
import asyncio

from taipan.broker.access.connection_trial import tried_sources
from taipan.broker.config import BrokerSettings, ClusterSettings
from taipan.broker.loop.clock import Clock
from taipan.broker.observability.log_text import one_line

from .. import configuration_check
from ..configuration.config import load
from ..configuration.config_document import ConfigError
from ..configuration.openid import OpenIdSettings
from ..configuration.settings import DashboardSettings
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
        "--connect",
        action="store_true",
        help="also connect to the NATS servers in [cluster], to remote access sources and to the OpenID Connect "
        "provider of the dashboard, as a node does",
    )
    add_set_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print that the file is valid. Raises ConfigError, or ArgumentError unless one file is given."""
    if (arguments.file is None) == (arguments.config is None):
        raise argparse.ArgumentError(None, "check requires a FILE (or - for standard input)")
    file = arguments.file or arguments.config
    settings = load(file, arguments.set + arguments.more)
    wrong = configuration_check.faults(settings)
    if wrong:
        raise ConfigError(*wrong)
    connected = _connect(settings.broker, settings.dashboard) if arguments.connect else []
    print("; ".join([f"{file}: ok", *connected]))
    return 0


def _connect(settings: BrokerSettings, dashboard: DashboardSettings) -> list[str]:
    """Return the result of each connection in a few words. Raises ConfigError."""
    connected = [] if settings.cluster is None else [f"NATS: {_connect_to_nats(settings, settings.cluster)}"]
    if settings.cluster is not None and settings.cluster.replicas:
        connected += _look_at_copies(settings.cluster, settings.node.name)
    if dashboard.openid is not None:
        connected.append(_ask_provider(dashboard.openid))
    try:
        tried = asyncio.run(tried_sources(settings.access))
    except ValueError as error:
        raise ConfigError(one_line(str(error))) from None
    if not connected and not tried:
        raise ConfigError("--connect: the configuration has no [cluster], remote access source or [dashboard.openid]")
    faults = [one_line(f"access.{name}: {fault}") for name, fault in tried.items() if fault]
    if faults:
        raise ConfigError(*faults)
    return connected + [f"access.{name}: connected" for name in tried]


def _ask_provider(settings: OpenIdSettings) -> str:
    """Return what the OpenID Connect provider publishes in a few words. Raises ConfigError."""
    # Imported here, because it needs PyJWT.
    from ..operations.openid.provider import OpenIdProvider, OpenIdProviderFailed

    async def ask() -> str:
        provider = OpenIdProvider(settings, Clock())
        await provider.try_out()
        return (await provider.metadata()).issuer

    try:
        return f"OpenID Connect: {one_line(asyncio.run(ask()))}"
    except OpenIdProviderFailed as failed:
        raise ConfigError(one_line(f"{failed.setting}: {failed.detail}")) from None


def _look_at_copies(cluster: ClusterSettings, node: str) -> list[str]:
    """Return what a node with copies would find. Raises ConfigError."""
    from taipan.broker.cluster.nats.interface import NatsRefused
    from taipan.broker.cluster.replicas.prospects import prospects

    try:
        found = asyncio.run(prospects(cluster, node))
    except NatsRefused as error:
        raise ConfigError(one_line(str(error))) from None
    lines = [one_line(f"copies: {each.found}" + (f" ({each.advice})" if each.advice else "")) for each in found]
    if any(each.level == "error" for each in found):
        raise ConfigError(*lines)
    return lines


def _connect_to_nats(settings: BrokerSettings, cluster: ClusterSettings) -> str:
    """Return the answers of the NATS servers of ``[cluster]`` in one line. Raises ConfigError."""
    # Imported here, because a node without a cluster needs no NATS client.
    try:
        from taipan.broker.cluster.nats.client import NatsClient, largest_packet
        from taipan.broker.cluster.nats.interface import NatsRefused
    except ImportError as error:
        raise ConfigError(f"[cluster]: {error}: pip install nkeys") from None

    client = NatsClient(cluster, settings.node.name, largest_packet(settings))
    try:
        return asyncio.run(client.probe())
    except NatsRefused as error:
        raise ConfigError(one_line(str(error))) from None
