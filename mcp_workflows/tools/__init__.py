"""The tools that a server exposes, as data; pure."""
