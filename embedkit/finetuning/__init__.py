"""End-to-end training of an encoder with a head, fold by fold.

Read in this order: ``options``, ``data``, ``heads``, ``parameters``, ``batches``, ``training`` (one
model), ``validation``, ``calibration``, ``results`` (predictions of all models), ``run`` (trains
them), ``summary`` (writes the run), ``folds`` (the function ``finetune``), ``inference``.
"""
