"""The name and the version of this software."""

from functools import cache
from importlib import metadata


@cache
def product_version() -> str:
    """Return the version of the installed distribution, ``"0.0.0"`` in a source tree that was never installed."""
    try:
        return metadata.version("taipan-mqtt")
    except metadata.PackageNotFoundError:
        return "0.0.0"
