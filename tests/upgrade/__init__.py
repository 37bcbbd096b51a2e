"""Stores that earlier versions wrote, opened by today's code."""
