"""The rule language: text to syntax tree, syntax tree to closures, and what values mean on the way.

What functions do is in `ruleengine.functions`; which columns events have and what actions do, in rooms of their own.
Whoever creates a rule calls `parser.parse` and `compiler.compile`, and the publish path calls `Program.run`.
"""
