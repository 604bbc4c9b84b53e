"""Benchmarks of `mcp-workflows` against a minimal server: `make bench`."""
