"""Polling: one poll at a time per execution, shared by all requests."""
