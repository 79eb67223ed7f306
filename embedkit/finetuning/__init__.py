"""End-to-end training of an encoder with a head, fold by fold.

Read in this order: ``options``, ``data``, ``heads``, ``parameters``, ``training`` (one fold),
``validation``, ``run`` (all folds), ``folds`` (the function ``finetune``), ``inference``.
"""
