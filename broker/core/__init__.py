"""The heart of the node: ``Broker.publish``, hook points, counters, the clock, and the timers everything runs on.

No sockets and no packets here; who may do what is in ``access``, what is kept of one client in ``session``.
``access``, ``observe``, ``modules`` and ``channel`` call in; ``server.py`` builds it.
"""
