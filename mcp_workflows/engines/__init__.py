"""The engines: every adapter call has a time limit and is counted here."""
