"""Clients written by others against a running node.

Here live adapters that give each client library one face (``clients/``), the behaviours every one of them must see,
and our own re-creation of what the Eclipse Paho interoperability suites check. Raw packets are the business of
``tests/scenarios``. pytest calls in; nobody else does.
"""
