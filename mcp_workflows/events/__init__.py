"""Events: subscriptions of clients, and deliveries to their endpoints."""
