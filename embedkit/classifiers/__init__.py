"""Classifiers and regressors on stored vectors, under the folds of a split.

``estimators`` has the table of kinds and saved models, ``tuning`` one fit, ``train`` a run,
``probe`` the scores of every stored view.
"""
