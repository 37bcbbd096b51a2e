"""Rules: their records, the index that finds those of a message, and the runtime that evaluates them.

``rule_manager`` creates, changes and deletes them. Actions and resources know nothing of this package.
"""
