"""Soak: a real node under load, killed again and again, and a record of what it has promised.

In these runs nothing looks inside the broker; the clients are raw sockets. ``make soak CYCLES=1000`` is a long run;
``tests/tools/soak`` runs it for some seconds. ``disk`` and its modules do the same to a node on a fake disk, at every
single operation.
"""
