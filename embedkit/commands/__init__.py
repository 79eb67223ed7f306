"""The command line by theme; ``embedkit.cli`` puts them together.

``options`` and ``progress`` are shared by ``results_cli``, ``finetune_cli``, ``search_cli``,
``experiment_cli`` and ``doctor_cli``.
"""
