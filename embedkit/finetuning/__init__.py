"""End-to-end training of an encoder with a head, fold by fold.

``options`` are settings, ``model`` the encoder with its head, ``training`` trains a fold, ``run``
all folds, and ``checkpoint`` predicts and exports.
"""
