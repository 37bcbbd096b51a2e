"""Tests of ``taipan.broker.mqtt``."""
