"""All tests of Taipan. Nothing here is imported by the broker."""
