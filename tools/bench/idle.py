"""The cost of an idle connection: opens CONNS (10,000) connections and prints the growth of the broker's resident
memory.

``python -m tools.bench.idle [taipan|mosquitto]``. The limit of open files (``ulimit -Hn``) limits the number.
"""

import json
import os
import subprocess
import sys

from tools.bench.brokers import BrokerError, pinned, raise_file_limit, running
from tools.bench.run import LOADGEN

RESERVE = 200  # descriptors either side needs for itself


def main() -> int:
    broker = sys.argv[1] if len(sys.argv) > 1 else "taipan"
    wanted = int(os.environ.get("CONNS", "10000"))
    connections = min(wanted, raise_file_limit() - RESERVE)
    if connections < wanted:
        print(f"the limit of open files lets {connections} of {wanted} connections in", file=sys.stderr)
    subprocess.run(["make", "--silent", "-C", str(LOADGEN)], check=True)
    usable = sorted(os.sched_getaffinity(0))
    cores = (usable[0], usable[1]) if len(usable) > 1 else (None, None)
    try:
        with running(broker, cores[0]) as (port, pid):
            command = [*pinned(cores[1]), str(LOADGEN / "loadgen"), "conn", "--port", str(port), "--pid", str(pid)]
            command += ["--conns", str(connections), "--concurrency", "64", "--hold", "2", "--timeout", "60"]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=150, check=True
            )
    except BrokerError as error:
        print(error, file=sys.stderr)
        return 1
    row = json.loads(done.stdout)
    print(
        f"{broker}: {row['up']} connections in {row['seconds']:.1f} s, {row['alive']} alive after 2 s, "
        f"{row['rss_bytes_per_conn']} bytes each ({row['rss_before_kb']:,} to {row['rss_after_kb']:,} KiB)"
    )
    return 0 if row["alive"] == connections else 1


if __name__ == "__main__":
    sys.exit(main())
