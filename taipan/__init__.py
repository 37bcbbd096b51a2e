"""Taipan, an MQTT 3.1, 3.1.1 and 5.0 broker.

``taipan.Node`` runs a node inside a program, ``taipan.BackgroundNode`` in a thread of it (docs/python.md). The names in
``__all__`` are the public Python API; everything else is private and may change.

The packages are ``taipan.broker``, ``taipan.ruleengine`` and ``taipan.management``. In the repository they are at the
top level, and ``taipan/`` has links to them. ``python -m taipan`` runs a node like the command ``taipan``.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .background import BackgroundNode, BackgroundSubscription
    from .hooks import Filter, Hook
    from .management.configuration.config_document import ConfigError
    from .message import Client, Message, Properties
    from .node import Node, NodeError
    from .subscription import Subscription

__all__ = [
    "BackgroundNode",
    "BackgroundSubscription",
    "Client",
    "ConfigError",
    "Filter",
    "Hook",
    "Message",
    "Node",
    "NodeError",
    "Properties",
    "Subscription",
    "__version__",
]

__version__: str

_MODULES: Final = {
    "BackgroundNode": "background",
    "BackgroundSubscription": "background",
    "Client": "message",
    "ConfigError": "management.configuration.config_document",
    "Filter": "hooks",
    "Hook": "hooks",
    "Message": "message",
    "Node": "node",
    "NodeError": "node",
    "Properties": "message",
    "Subscription": "subscription",
}
"""The module of each public name. A module is imported on first use, so importing one part does not load all."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .broker.version import product_version

        return product_version()
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        found = globals()[name] = getattr(import_module(f".{module}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == __name__:
            raise
        raise ModuleNotFoundError(wrong_interpreter(error.name), name=error.name) from error
    return found


def wrong_interpreter(missing: str) -> str:
    """Return what to do if a required package is missing: in a clone, only its own environment has all of them."""
    import sys
    from pathlib import Path

    own = Path(__file__).resolve().parents[1] / ".venv" / "bin" / "python"
    what = f"run it with {own}" if own.exists() else "install Taipan for it (docs/install.md)"
    return f"No module named {missing!r}: {sys.executable} does not have the packages that Taipan needs; {what}"
