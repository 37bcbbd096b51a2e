"""History: the metrics of the node, with one point per second for the last hour and one per minute for the last day.

``management_server`` creates it; ``operations`` reads it. ``point.py`` defines the metrics."""
