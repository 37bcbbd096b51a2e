"""Simulation of a cluster: whole nodes on a virtual clock, and all faults that can occur between them, determined by a
seed.

``python -m tools.simulation`` runs it. ``loop`` is the event loop; ``disk`` is the storage of nodes in memory, and
``files`` the storage of nodes with copies, in real files; ``node`` is a node, and ``client`` an MQTT client. ``world``
combines them and causes the events; ``promises`` checks the result."""
