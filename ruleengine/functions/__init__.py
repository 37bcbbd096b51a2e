"""The functions of rule SQL: those of EMQX 4.x and those that an operator registers in Python.

The syntax of calls is in `taipan.ruleengine.sql`, the columns of events in `taipan.ruleengine.events.kinds`. The SQL
compiler uses `registry.FUNCTIONS`."""
