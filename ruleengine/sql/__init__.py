"""The rule language: text to syntax tree, syntax tree to closures, and what values mean on the way.

Functions are in `ruleengine.functions`, columns in `ruleengine.events`, actions in `ruleengine.actions`.
The rule manager calls `parser.parse` and `compiler.compile`, and the publish path calls `Program.run`.
"""
