"""Texts → hidden states → vectors.

From bottom to top: ``multilingual``, ``checkpoint`` (name → verified files), ``tokenizer`` (texts →
ids, offsets, windows), ``model``, ``packed`` (ids → hidden states), ``views``, ``pooling``,
``shard`` (texts → batches → vectors in order), ``tables`` (words and tokens), ``encoder``.
"""
