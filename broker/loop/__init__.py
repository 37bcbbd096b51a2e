"""Time on the event loop: the clock, timers, the recurring call and the budget of an iteration.

This package knows neither sessions nor messages. All code that waits for a point in time, or that may hold the loop
for long, uses it.
"""
