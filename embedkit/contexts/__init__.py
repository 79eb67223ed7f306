"""Words in context: their uses, and clusters of uses by layer."""
