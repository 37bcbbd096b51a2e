"""One module for each server: how its process is prepared and started, and what is asked of it."""
