"""Texts → trained encoders, fold by fold.

Read in this order: ``texts``, ``heads``, ``lora``, ``training`` (one fold), ``finetuning`` (all of
them), ``finetuned`` (asking a finished run).
"""
