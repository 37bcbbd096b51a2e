"""The broker: ``Broker`` routes messages, ``SessionLife`` starts and ends sessions, ``Retaining`` decides which
messages are retained; hook points; the memory budget.

``Broker.subscribe`` applies Retain Handling; ``Broker.accept`` accepts or refuses every published message.

This package has no sockets and no packets. Access control is in ``access``, the state of one client in ``session``.
``channel``, ``extensions`` and ``store`` call this package; ``server.py`` creates it."""
