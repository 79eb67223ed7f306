"""Words in context: their uses, and how near these are."""
