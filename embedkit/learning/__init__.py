"""Stored vectors → folds → scores.

Read in this order: ``splits``, ``scores``, ``outcomes`` (what was predicted), ``reencoding`` and
``unseen`` (new texts as the dataset's were made), ``learners``, ``runs`` and ``figures`` (the
folder of a run), then what commands call: ``classify``, ``probing`` and ``mteb``.
"""
