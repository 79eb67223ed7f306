"""Pages to look at: the texts of a dataset, and the uses of words."""
