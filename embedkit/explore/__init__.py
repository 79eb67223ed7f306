"""Pages to look at: ``page`` shows the texts of a dataset, ``senses_page`` the uses of a word."""
