"""A store for several hosts: tables in one schema of a PostgreSQL database."""
