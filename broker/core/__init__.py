"""The broker: ``Broker.publish``, subscribing, how sessions begin and end; hook points; the budget of memory.

No sockets and no packets here; who may do what is in ``access``, what is kept of one client in ``session``.
``access``, ``extensions``, ``store`` and ``channel`` call in; ``server.py`` builds it.
"""
