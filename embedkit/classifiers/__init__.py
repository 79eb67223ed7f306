"""Classifiers and regressors on stored vectors, under the folds of a split.

``estimators`` is the table of kinds; ``train`` fits one, ``probe`` scores every stored view,
``test_set`` loads an external test set.
"""
