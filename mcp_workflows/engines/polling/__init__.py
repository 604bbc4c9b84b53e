"""Polling: one look at a time per execution, shared by all requests."""
