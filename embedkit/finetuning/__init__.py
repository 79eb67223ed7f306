"""End-to-end training of an encoder with a head, fold by fold.

Read in this order: ``options``, ``data``, ``heads``, ``parameters``, ``training`` (one fold),
``validation``, ``folds`` (all of them), ``inference`` (predictions of a finished run).
"""
