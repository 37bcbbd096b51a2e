"""History: the metrics of the node, with one point per second for the last hour, one per minute for
the last two days and one per ten minutes for the last 30 days.

``management_server`` creates it; ``operations`` reads it. ``point.py`` defines the metrics."""
