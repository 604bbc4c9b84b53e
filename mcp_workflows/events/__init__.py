"""Events: what clients subscribe to, and the deliveries to their endpoints."""
