"""What operators and authors use: check, discover, explain, preview, replay, verify, and files to embed."""
