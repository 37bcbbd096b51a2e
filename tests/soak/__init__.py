"""Soak: a real node under load, killed again and again, and a ledger that knows what it owes.

Nothing here looks inside the broker; the clients are raw sockets. ``make soak CYCLES=1000`` runs it long,
``test_short.py`` for some seconds.
"""
