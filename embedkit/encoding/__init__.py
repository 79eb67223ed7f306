"""Texts → hidden states → vectors.

Read in this order: ``checkpoint`` (name → verified files), ``vocabulary``, ``tokenization`` and
``alignment`` (texts → ids, offsets, windows), ``views`` and ``pooling``, ``device`` (where to
compute), ``model``, ``packed`` and ``attention`` (ids → hidden states, plainly and without
padding), ``precision``, ``shard`` (texts → batches → vectors in order), ``tables`` (rows of words
and tokens), ``encoder`` (all of it together).
"""
