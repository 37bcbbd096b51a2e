"""Commands of ``taipan`` beside running a node: ``add_to`` of each module says its arguments, ``run`` does the work.

A command that cannot do it raises ConfigError, whose lines go to standard error, and has changed nothing.
"""
