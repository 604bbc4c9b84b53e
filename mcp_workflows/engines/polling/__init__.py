"""Polling: one look at a time per execution, shared by all who wait for it."""
