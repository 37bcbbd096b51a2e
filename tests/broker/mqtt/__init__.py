"""Tests of ``broker.mqtt``."""
