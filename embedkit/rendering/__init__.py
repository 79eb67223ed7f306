"""Results as text for people, and as JSON for programs.

``render`` for datasets and checkpoints, ``run_render`` for runs, ``search_render`` for what is
near, ``tabulate`` for comparisons, ``doctor_render`` for the installation.
"""
