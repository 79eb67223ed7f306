"""Whether extraction works here, and what a bug report should say about the installation.

A check is ``ok``, a ``note`` (extraction works) or a ``problem`` (extraction would fail, or give
wrong numbers) with what to do about it. Home folder, user name, tokens and passwords are left out.
"""
