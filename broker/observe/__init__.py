"""What is seen of the node: gauges with their high-water marks, the event loop's lag, and the ``$SYS`` topics.

Counters are in ``core.metrics``, counted where things happen; ``management`` puts together what operators ask for.
``server.py`` builds these, registers what the gauges read, and runs them from the node's ticker.
"""
