"""The next token of a text (task=language), a text as tokens, and a small transformer."""
