"""Corpora → records and rejects, streaming, byte-exact, without losing or altering a row.

The readers of text are embedkit's own because no fast reader has literal quotes, one reject per
undecodable row, physical line numbers, lone carriage returns, no phantom rows and no type
inference. They deliver about a hundred thousand texts a second; a CPU encodes some thousand.
"""

from embedkit.corpus.memory import CorpusLike, InputFile, input_files
from embedkit.corpus.plan import CorpusOptions, CorpusPlan, hash_inputs, plan_corpus
from embedkit.corpus.records import CorpusReader, ReadCounts, Record, Reject
from embedkit.corpus.sources import Place

__all__ = [
    "CorpusLike",
    "CorpusOptions",
    "CorpusPlan",
    "CorpusReader",
    "InputFile",
    "Place",
    "ReadCounts",
    "Record",
    "Reject",
    "hash_inputs",
    "input_files",
    "plan_corpus",
]
