"""Vectors of a whole corpus on disk: made, resumed, read and checked.

Read in this order: ``schema`` (Parquet), ``vector_settings`` and ``manifest`` (what shaped the
bytes), ``reader``, ``store`` and ``batches`` (reading), ``jobs`` (the folder under way),
``planning``, ``shards`` and ``extraction`` (the loop), then ``verification``, ``inspection`` and
``estimate``.
"""
