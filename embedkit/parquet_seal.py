"""Parquet files that carry a checksum of all that is in them.

    PAR1 | pages | tag, SHA-256 | footer | length, PAR1

Readers of Parquet find pages by the offsets in the footer, and the footer from the end: what lies
between them is nothing to them. So a file that stands alone, with no list of checksums beside it,
is compared before Arrow parses its footer, and one that another program writes has no checksum.
"""

from __future__ import annotations

import hashlib

__all__ = ["has_seal", "is_whole", "sealed"]

_TAG = bytes.fromhex("00e38bf1") + b"embedkit" + bytes.fromhex("9c17d20a")
_LENGTH, _DIGEST = 8, 32


def sealed(content: bytes | memoryview) -> bytes:
    """Return a Parquet file with its checksum.

    >>> is_whole(sealed(b"PAR1" + b"footer" + (6).to_bytes(4, "little") + b"PAR1"))
    True
    """
    footer = int.from_bytes(content[-_LENGTH:-4], "little")
    at = len(content) - _LENGTH - footer
    return b"".join((content[:at], _TAG, hashlib.sha256(content).digest(), content[at:]))


def has_seal(content: bytes) -> bool:
    """Whether a Parquet file carries a checksum."""
    return _TAG in content


def is_whole(content: bytes) -> bool:
    """Whether a Parquet file is what was written, as far as it has a checksum.

    It is looked for in the whole file: the length of the footer may be what is damaged.
    """
    at = content.rfind(_TAG)
    if at < 0:
        return True
    end = at + len(_TAG) + _DIGEST
    digest = hashlib.sha256(memoryview(content)[:at])
    digest.update(memoryview(content)[end:])
    return digest.digest() == content[end - _DIGEST : end]
