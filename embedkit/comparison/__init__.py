"""Compare runs of one split: load them, blend them, test differences, draw and report.

Read in this order: ``load``, ``blend``, ``table``, ``cases``, ``recommendation``, ``report``.
"""
