"""Time on the event loop: the clock, timers, the one recurring call and the budget of an iteration.

Nothing here knows sessions or messages. Everything that waits for a moment or may hold the loop uses it.
"""
