"""The MQTT Server: it serves clients without any package above it.

Imports between packages only go down (docs/architecture.md); the rule engine and management are not part of this
package. ``taipan.management.node`` creates a ``taipan.broker.server.Server`` and runs it, as do tests and programs that
embed a node."""

from . import compiled as compiled  # first, because it decides which modules the others are
