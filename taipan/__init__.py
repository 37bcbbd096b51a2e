"""Taipan."""
