"""The rule language: from text to a syntax tree, from the tree to closures, and the semantics of values.

Functions are in `ruleengine.functions`, columns in `ruleengine.events`, actions in `ruleengine.actions`. The rule
manager calls `parser.parse` and `compiler.compile`, and the publish path calls `Program.run`."""
