"""Vectors of a whole corpus on disk: extraction, resume, reading and verification.

Imports go down this list: ``extract`` and ``planning``, ``shards`` (records to files), ``reuse``,
``job`` (the folder), ``encoders`` (new texts encoded alike), ``fold_models``, ``read``, ``info``,
``tables``, ``parquet`` (a shard as bytes), ``format`` (records of the manifest), ``settings``.
"""
