"""``python -m tools.fuzz --seconds 60 [--live URL [--pid PID] [--connections 16] [--rate 400]] [--seed N]``"""

import argparse
import asyncio
import secrets
import sys

from . import live, target


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description="bad bytes in great number")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--live", metavar="URL", help="a running node that lets anonymous clients in: HOST:PORT, tls://, ws://…/mqtt"
    )
    parser.add_argument("--pid", type=int, help="of that node: its resident memory is printed before and after")
    parser.add_argument("--connections", type=int, default=16, help="at a time, against a running node")
    parser.add_argument("--rate", type=float, default=400.0, help="connections begun a second at most")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    try:
        goal = live.Target(arguments.live) if arguments.live else None
    except ValueError as error:
        parser.error(str(error))
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    try:
        if goal is None:
            counts = target.run(arguments.seconds, seed)
        else:
            before = live.resident(arguments.pid) if arguments.pid else 0
            counts = asyncio.run(live.run(goal, arguments.seconds, seed, arguments.connections, arguments.rate))
            if arguments.pid:
                print(f"resident: {before} KiB before, {live.resident(arguments.pid)} KiB after")
    except (target.Found, live.NotServed) as error:
        print(f"found: {error}", file=sys.stderr)
        return 1
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
