"""Corpora → records and rejects, streaming, byte-exact, without losing or altering a row.

The readers of text are embedkit's own because no fast reader gives all of: quotes taken literally,
one reject per undecodable row, physical line numbers, lone carriage returns kept, no phantom rows
and no type inference. An encoder reads some thousand texts a second on a CPU; these readers
deliver about a hundred thousand.
"""

from embedkit.corpus.inputs import CorpusLike, InputFile, input_files
from embedkit.corpus.options import CorpusOptions
from embedkit.corpus.plan import CorpusPlan, hash_inputs, plan_corpus
from embedkit.corpus.records import CorpusReader, Record, Reject

__all__ = [
    "CorpusLike",
    "CorpusOptions",
    "CorpusPlan",
    "CorpusReader",
    "InputFile",
    "Record",
    "Reject",
    "hash_inputs",
    "input_files",
    "plan_corpus",
]
