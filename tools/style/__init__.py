"""``make style``: sentence patterns that docs/style.md advises against, counted per file against a budget.

A reader judges English; this finds only what a pattern can find. ``budget.txt`` has, for each file and pattern, how
many occurrences existed when the check was introduced. A file may have fewer, never more; a new file has none.
"""
