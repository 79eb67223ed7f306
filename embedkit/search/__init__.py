"""Nearest texts: exact search, indexes, conditions on columns, centering and whitening."""
