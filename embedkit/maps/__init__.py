"""The page of the texts of a dataset."""
