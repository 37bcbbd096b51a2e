"""Where MQTT.js is, and a Node that runs it: the machine's, or the one that PyPI has brought (``build_dashboard``)."""

import shutil
from pathlib import Path

import build_dashboard

from .absent import absent

INTEROP = Path(__file__).resolve().parents[1] / "interop"
MODULES = INTEROP / "node_modules"


def mqtt_js() -> tuple[str, Path]:
    """Node, and the packages; those are installed where they are not yet. Skips where there is no Node."""
    node = shutil.which("node") or build_dashboard.own_node()
    if node is None:
        absent("node")
    try:
        build_dashboard.install_packages(INTEROP, fetch=False)
    except build_dashboard.CannotBuild:
        absent("MQTT.js")
    return str(node), MODULES
