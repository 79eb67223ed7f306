"""What is near what: search, indexes, sentence pairs, words in context, maps.

``topk``, ``coarse``, ``isotropy``, ``filters`` and ``nearest`` are exact search; ``search`` and
``index`` stand on them. ``similarity`` is for pairs, ``occurrences``, ``words`` and ``marked`` for
words, ``projection`` for maps.
"""
