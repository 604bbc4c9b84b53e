"""The engines: every call to an adapter is bounded in time and counted here."""
