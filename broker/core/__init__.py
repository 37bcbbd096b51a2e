"""The broker: ``Broker`` routes messages, ``SessionLife`` begins and ends sessions, ``Retaining`` decides what is
retained; hook points; the budget of memory.

``Broker.subscribe`` applies Retain Handling; ``Broker.accept`` refuses or takes what anybody publishes.

No sockets and no packets here; who may do what is in ``access``, what is kept of one client in ``session``.
``channel``, ``extensions`` and ``store`` call in; ``server.py`` builds it.
"""
