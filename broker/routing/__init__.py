"""Which sessions receive a message: the index of Topic Filters, the Shared Subscription groups, and the retained
messages.

This package sends nothing and changes no session. It has no sockets, clocks or configuration: time is an argument.
``core.broker`` calls it when a client subscribes, unsubscribes or publishes; the rule engine also uses the ``Trie``."""
