"""``python -m tools.soak --cycles 1000``: the long run; exit status 1 if any promise was broken."""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from .driver import Soak
from .workers import WorkersSoak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long at the latest")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of what is done, not of when")
    parser.add_argument("--settle-every", type=int, default=5, metavar="N", help="cycles between complete checks")
    parser.add_argument("--dir", type=Path, default=None, help="data and log; kept if anything is wrong")
    parser.add_argument("--workers", type=int, default=1, help="run taipan --workers N, if more than 1")
    options = parser.parse_args()
    soak: Soak | WorkersSoak
    if options.workers > 1:
        soak = WorkersSoak(options.seed, options.dir, options.workers)
    else:
        soak = Soak(options.seed, options.dir)
    print(f"soak seed={options.seed} dir={soak.directory}", flush=True)
    began = time.monotonic()
    kept = asyncio.run(soak.run(options.cycles, options.settle_every, options.seconds))
    print(f"{'ok' if kept else 'FAILED'} {soak.account()} seconds={time.monotonic() - began:.0f} seed={options.seed}")
    for violation in soak.promises.violations[:10]:
        print(violation, file=sys.stderr)
    if not kept:
        print(f"{len(soak.promises.violations)} violations; data and log are kept in {soak.directory}", file=sys.stderr)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
