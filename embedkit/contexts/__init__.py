"""Words in context: their uses, clusters of uses, and senses by layer."""
