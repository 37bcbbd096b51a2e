"""``taipan cluster try [--nodes N] [--share-port]``: a trial cluster on loopback (``local_cluster``)."""

import argparse


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    cluster = commands.add_parser("cluster", help="try out a cluster").add_subparsers(
        dest="what", metavar="try", required=True
    )
    parser: argparse.ArgumentParser = cluster.add_parser(
        "try", help="run a NATS server and several nodes on loopback until Ctrl-C, with data in a temporary directory"
    )
    parser.add_argument(
        "--nodes", metavar="N", type=int, choices=range(1, 17), default=3, help="number of nodes (default: 3)"
    )
    parser.add_argument("--share-port", action="store_true", help="let all nodes listen on the same port (reuse_port)")
    parser.add_argument(
        "--port", metavar="PORT", type=_port, default=1883, help="first MQTT port to use (default: 1883)"
    )
    parser.add_argument(
        "--management-port",
        metavar="PORT",
        type=_port,
        default=8081,
        help="first management port to use (default: 8081)",
    )
    parser.add_argument(
        "--dashboard-port",
        metavar="PORT",
        type=_port,
        default=18083,
        help="first dashboard port to use (default: 18083)",
    )
    parser.add_argument("--dir", metavar="DIR", help="keep data and logs in this directory for another run")
    parser.set_defaults(run=run, refuses=("config", "set"), keeps_signals=True)


def run(arguments: argparse.Namespace) -> int:
    # Imported here: otherwise every command of taipan would have to import the HTTP client.
    from . import local_cluster

    return local_cluster.run(
        local_cluster.Options(
            arguments.nodes,
            arguments.share_port,
            arguments.port,
            arguments.management_port,
            arguments.dir,
            arguments.dashboard_port,
        )
    )


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdecimal() else 0
    if not 1 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 1 to 65535")
    return port
