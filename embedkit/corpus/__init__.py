"""Corpora → records and rejects, streaming, byte-exact, without losing or altering a row.

The readers of text are embedkit's own because no fast reader has literal quotes, one reject per
undecodable row, physical line numbers, lone carriage returns, no phantom rows and no type
inference. They deliver about a hundred thousand texts a second; a CPU encodes some thousand.
"""
