"""Measurements; each module is one command, and its last figures stand in README.md here."""
