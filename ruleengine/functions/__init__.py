"""What rule SQL can call: the functions of EMQX 4.x and those that an operator registers in Python.

How a call stands in a statement is in `taipan.ruleengine.sql`; what an event's columns are is in
`taipan.ruleengine.events.kinds`. The SQL compiler calls in through `registry.FUNCTIONS`.
"""
