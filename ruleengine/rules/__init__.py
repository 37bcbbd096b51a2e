"""Rules: their records, the index that finds the rules of a message, and the runtime that evaluates them.

``rule_manager`` creates, changes and deletes them. Actions and resources do not know this package."""
