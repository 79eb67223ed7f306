"""Whether extraction works here, and what a bug report should say about the installation.

A check is ``ok``, a ``note`` (something to know; extraction works) or a ``problem`` (extraction
would fail, or give wrong numbers), and a problem says what to do. The home folder and the user's
name are left out of everything that is reported, and so are tokens and passwords.

``diagnose`` makes all checks: those of the installation and the machine in ``system``, those that
run the model in ``models``; ``report`` holds what they find.
"""
