"""End-to-end training of an encoder with a head on it, fold by fold.

Read in this order: ``data``, ``heads``, ``lora``, ``training`` (one fold), ``folds`` (all of them),
``inference`` (predictions of a finished run).
"""
