"""The command line by theme; ``embedkit.cli`` puts them together.

``options`` and ``progress`` are shared by ``results_cli``, ``finetune_cli``, ``search_cli`` and
``experiment_cli``.
"""
