"""Connections that actions share: one file for each resource type, its parameters declared as data.

A resource says whether it is alive and keeps trying; it knows no rule.
The engine makes, restarts and ends them; actions are handed theirs.
"""
