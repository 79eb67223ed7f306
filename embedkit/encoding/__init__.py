"""Texts → hidden states → vectors.

Read in this order: ``checkpoint`` (name → verified files), ``alignment`` and ``tokenization``
(texts → ids, offsets, windows), ``views`` and ``pooling``, ``device`` (where to compute),
``model`` and ``packed`` (ids → hidden states, plainly and without padding), ``precision``,
``shard`` (texts → batches → vectors in order), ``encoder`` (all of it together).
"""
