"""Who receives a message: the index of Topic Filters, Shared Subscription groups, and the Retained Messages.

Nothing is sent from here, no session is changed, and no socket, clock or configuration is known: time is an argument.
``core.broker`` calls in when a client subscribes, unsubscribes or publishes; the rule engine borrows the ``Trie``.
"""
