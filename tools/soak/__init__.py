"""Soak: a real node under load, killed again and again, and a record of what it has promised.

There nothing looks inside the broker; the clients are raw sockets. ``make soak CYCLES=1000`` runs it long,
``tests/tools/soak`` for some seconds. ``disk`` and what belongs to it do the same to a node on a fake disk, at every
single operation.
"""
