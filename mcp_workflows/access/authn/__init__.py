"""Authentication: verified tokens, trusted proxies and the issuers behind them."""
