"""The connections of resources: addresses that are refused, and the common TLS parameters.

The package does not know protocols or resource types."""
