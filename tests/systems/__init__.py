"""Tests with the systems that people connect: real servers, started here on free ports of the loopback interface."""
