"""``python -m tools.simulation --seeds 10000``: simulates this number of clusters; exit status 1 if a promise was
broken."""

import argparse
import logging
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed

from .world import APART, DEFAULT, EVERYTHING, NODES, World

CHUNK = 5


def run_seed(seed: int, features: tuple[str, ...], nodes: int, trace: bool = False) -> list[str]:
    # Tasks of dead nodes are collected some time later, and may log errors.
    logging.getLogger("taipan").addHandler(logging.NullHandler())
    sys.unraisablehook = lambda _: None
    warnings.simplefilter("ignore", RuntimeWarning)
    return World(seed, features, print if trace else None, nodes).run()


def run_seeds(seeds: range, features: tuple[str, ...], nodes: int) -> dict[int, list[str]]:
    """Return the seeds that failed, with their violations."""
    found = {seed: run_seed(seed, features, nodes) for seed in seeds}
    return {seed: wrong for seed, wrong in found.items() if wrong}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, default=None, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: everything that happens")
    parser.add_argument(
        "--features",
        default=",".join(DEFAULT),
        help="its features, separated by commas; all: all but commands, forced, fresh, evacuated and replicas",
    )
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--failures", type=int, default=10, help="end after so many seeds have failed")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of a set of texts is the same again only so.
        os.execve(sys.executable, [sys.executable, "-m", "tools.simulation", *sys.argv[1:]], {
            **os.environ, "PYTHONHASHSEED": "0",
        })  # fmt: skip
    named = options.features.split(",")
    features = tuple(each for name in named for each in (EVERYTHING if name == "all" else (name,)))
    unknown = sorted({*features} - {*EVERYTHING, *APART})
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}")
    if options.seed is not None:
        wrong = run_seed(options.seed, features, options.nodes, options.trace)
        for each in wrong:
            print(each)
        print("ok" if not wrong else f"FAILED seed {options.seed}")
        return 1 if wrong else 0
    began = time.monotonic()
    end = options.first + options.seeds
    failed: dict[int, list[str]] = {}
    done = 0
    with ProcessPoolExecutor(options.processes) as pool:
        chunks = [range(first, min(first + CHUNK, end)) for first in range(options.first, end, CHUNK)]
        running = {pool.submit(run_seeds, chunk, features, options.nodes): chunk for chunk in chunks}
        for future in as_completed(running):
            found = future.result()
            done += len(running[future])
            failed |= found
            for seed, wrong in found.items():
                about = f"--features {options.features} --nodes {options.nodes}"
                print(f"FAILED python -m tools.simulation --seed {seed} {about}")
                print(*(f"    {each}" for each in wrong[:3]), sep="\n", flush=True)
            if len(failed) >= options.failures:
                pool.shutdown(cancel_futures=True)
                break
    seconds = time.monotonic() - began
    print(f"{'FAILED' if failed else 'ok'} seeds={done} failed={len(failed)} seconds={seconds:.0f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
