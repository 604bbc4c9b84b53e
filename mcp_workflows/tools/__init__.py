"""Tools: what a server exposes, as data; pure."""
