"""The MQTT Server: it starts and serves clients with nothing above it.

Imports between packages go down only (docs/architecture.md), and the rule engine and the operators' side are not
here. ``taipan.management.node`` builds a ``taipan.broker.server.Server`` and runs it; tests and embedders do the same.
"""

from . import compiled as compiled  # before anything else: it decides which modules those are
