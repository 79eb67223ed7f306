"""What checks cost when a dataset is opened, and how fast a file is compared with its checksum.

    python -m benchmarks.opening DATASET [FILE]

A dataset is opened in turn with the checksums of its footers and without, as one of an earlier
version; FILE is compared by its blocks, as the model of a fold or an index is. Times are of the
processor, of all threads together, so that other processes on the machine count little; with two
cores or more a file is compared in less.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from embedkit import fsio
from embedkit.checksums import block_sums
from embedkit.dataset.manifest import Manifest, read_manifest
from embedkit.dataset.reader import TableReader

REPEATS = 41


def main(dataset: Path, file: Path | None) -> None:
    """Print the times of opening and of reading, and the rate of hashing."""
    checked = read_manifest(dataset)
    bare = replace(checked, files={n: replace(e, footer=None) for n, e in checked.files.items()})
    view = (checked.default_view("sentences"),)

    def open_only(manifest: Manifest) -> None:
        read_manifest(dataset)
        assert TableReader(dataset, manifest, "sentences", view).blocks

    def read_all(manifest: Manifest) -> None:
        read_manifest(dataset)
        reader = TableReader(dataset, manifest, "sentences", view)
        reader.fill(np.empty((len(reader), reader.width), np.float32))

    for name, use in (("open", open_only), ("open and read", read_all)):
        with_sums, without = [], []
        for _ in range(REPEATS):
            without.append(seconds(partial(use, bare)))
            with_sums.append(seconds(partial(use, checked)))
        before, after = median(without), median(with_sums)
        print(
            f"{name}, {checked.n_shards} shards: {1e3 * before:.2f} ms without checksums of "
            f"footers, {1e3 * after:.2f} ms with them ({after / before - 1:+.1%})"
        )
    if file is not None:
        size = file.stat().st_size
        blocks = min(seconds(lambda: block_sums(file, size)) for _ in range(5))
        whole = min(seconds(lambda: fsio.file_sha256(file)) for _ in range(5))
        print(
            f"SHA-256 of {file.name}: {size / blocks / 1e9:.2f} GB/s by blocks, "
            f"{size / whole / 1e9:.2f} GB/s as a whole"
        )


def seconds(call: Callable[[], object]) -> float:
    """Processor time of a call."""
    started = time.process_time()
    call()
    return time.process_time() - started


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
