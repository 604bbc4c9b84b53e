"""What `mcp-workflows` costs, against the least one could write: `make bench`."""
