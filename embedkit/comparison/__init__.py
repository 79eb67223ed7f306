"""Runs of one split → numbers → a page.

Read in this order: ``runsets``, ``blending``, ``sources`` (texts of records), ``compare``,
``charts``, ``report``.
"""
