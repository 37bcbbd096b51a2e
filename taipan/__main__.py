"""``python -m taipan``: the same as the ``taipan`` command."""

import sys

from . import wrong_interpreter

if __name__ == "__main__":
    try:
        from .management.start import main

        status = main()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "taipan":
            raise
        sys.exit(f"taipan: {wrong_interpreter(error.name)}")
    sys.exit(status)
