"""Taipan, an MQTT 3.1, 3.1.1 and 5.0 broker.

The packages are ``taipan.broker``, ``taipan.ruleengine`` and ``taipan.management``; in the repository they stand at the
top, and ``taipan/`` has links to them. ``python -m taipan`` runs a node as the command ``taipan`` does.
"""

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    # Looked up when it is asked for: whoever imports a part of taipan need not wait for the metadata to be read.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .broker.version import product_version

    return product_version()
