"""Durable rows: the protocol of a store, its encryption, and the default store."""
