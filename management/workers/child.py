"""Becomes another program that the system kills when its parent ends, so that no worker outlives its supervisor.

Executed as a script: ``python -I child.py PARENT PROGRAM [ARGUMENT...]``. The system does this on Linux only."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Replace this process by ``command``, or end it if ``parent`` has ended."""
    # A SIGHUP now is one for the program, which reads its configuration after this.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit(1)
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
