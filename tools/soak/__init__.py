"""Soak: a real node under load that is killed repeatedly, and a record of its promises.

The soak does not look inside the broker; its clients are raw sockets. ``make soak CYCLES=1000`` is a long run;
``tests/tools/soak`` runs it for some seconds. ``disk`` and its modules kill a node on a fake disk at every single
operation."""
