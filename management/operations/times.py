"""Times as the records have them: local, to the second."""

import time


def text(when: float) -> str:
    """Unix seconds as ``YYYY-MM-DD HH:mm:ss``."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
