"""History: the figures of the node, one point a second of the last hour and one a minute of the last day.

Made by ``management_server``; ``operations`` reads it. What the figures are is in ``point.py``.
"""
