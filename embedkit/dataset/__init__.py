"""Vectors of a whole corpus on disk: extraction, resume, reading and verification.

Imports go down this list: ``extract`` and ``planning``, ``shards`` (records to files), ``reuse``,
``job`` (the folder), ``encoders`` (new texts encoded alike), ``fold_models``, ``info``, ``read``,
``tables``, ``format`` (records of the manifest), ``settings``, ``parquet`` (a shard as bytes).
"""
