"""Files → records and rejects, streaming, byte-exact, without losing or altering a row.

The readers are embedkit's own because no fast reader gives all of: quotes taken literally, one
reject per undecodable row, physical line numbers, lone carriage returns kept, no phantom rows and
no type inference. An encoder reads some thousand texts a second on a CPU; these readers
deliver about a hundred thousand.
"""

from embedkit.corpus.plan import CorpusPlan, InputFile, hash_inputs, plan_corpus
from embedkit.corpus.records import CorpusReader, Record, Reject

__all__ = [
    "CorpusPlan",
    "CorpusReader",
    "InputFile",
    "Record",
    "Reject",
    "hash_inputs",
    "plan_corpus",
]
