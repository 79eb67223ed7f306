"""Vectors of a whole corpus on disk: made, resumed, read and checked.

Read in this order: ``schema`` and ``pages`` (Parquet), ``store`` (reading), ``jobs`` (the folder
and its fingerprint), ``tables``, ``stages`` and ``extraction`` (the loop), then ``verification``,
``inspection`` and ``estimate``.
"""
