"""Commands of ``taipan`` other than running a node; ``index.COMMANDS`` lists them.

``add_to`` of a module adds the arguments of its command, with these defaults:

- ``run``: does the work and returns the exit status. It raises ConfigError, whose lines go to standard error, if the
  command cannot be done; nothing is changed then. It raises ArgumentError for arguments that do not fit together.
- ``refuses``: options of ``taipan`` itself that the command does not take, ``config`` and ``set``.
- ``keeps_signals``: whether the command itself acts on signals that arrived before it began.

``arguments.parser`` is the parser of ``taipan``.
"""
