"""The console script ``taipan``: it keeps signals (``early_signals``) before it imports the node."""

import signal

from .early_signals import STOPS, keep


def main() -> int:
    """The console script. Returns the exit status."""
    keep()
    try:
        from . import node

        return node.main()
    except KeyboardInterrupt:  # the command ends because of Ctrl-C
        return 130
    finally:
        # A Ctrl-C while the interpreter exits ends the process, and prints no traceback.
        for each in STOPS:
            signal.signal(each, signal.SIG_DFL)
