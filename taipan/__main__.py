"""``python -m taipan``: the same as the ``taipan`` command."""

import sys

from .management.start import main

if __name__ == "__main__":
    sys.exit(main())
