"""Connections that actions share: one file for each resource type, with its parameters declared as data.

A resource reports whether it is alive and keeps trying; it does not know rules. The engine creates, restarts and ends
resources, and passes them to actions."""
