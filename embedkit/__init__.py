"""Hidden vectors of BERT-family encoders for whole corpora, and results from those vectors."""

__version__ = "0.1.0"
