"""Vectors of a whole corpus on disk: extraction, resume, reading and verification.

Imports go down this list: ``info``, ``verify``, ``extract`` (options, plan, estimate), ``shards``
(records to files), ``job`` (the folder), ``settings`` (new texts encoded alike), ``fold_models``,
``read``, ``format`` (records of the manifest, schema).
"""
