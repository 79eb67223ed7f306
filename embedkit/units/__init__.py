"""What is labelled, split, learnt and scored: units, and their targets."""
