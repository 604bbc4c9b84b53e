"""Clients and hosts of other projects, and what each should see of our tasks."""
