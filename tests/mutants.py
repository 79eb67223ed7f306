"""Faults planted in the storing of results, each of which the faults of ``tests.faults`` must find.

``python -m tests.mutants`` (part of ``make test-faults``) plants one after the other in a child and
lets the harness loose on it; a mutant that nothing is said about has survived.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.faults import Child, Harness, base, prepare

# isort: split
from embedkit import artefacts, checksums, fsio, sklearn
from embedkit.dataset import jobs, matrix_files, parquet_pages, schema, store
from embedkit.runs import folder as run_folder


def _plant(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _no_fsync(of_folders: bool, of_files: bool) -> None:
    real = fsio._sync

    def sync(descriptor: int) -> None:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if not (of_folders if folder else of_files):
            real(descriptor)

    fsio._sync = sync


def _publish_without_fsync() -> None:
    fsio.publish_folder = os.rename  # type: ignore[assignment]
    real = fsio._exchange
    fsio.exchange_folders = real


def _copy_for_rename() -> None:
    def publish(source: Path, target: Path) -> None:
        shutil.copytree(source, target, dirs_exist_ok=True)
        shutil.rmtree(source)

    fsio.publish_folder = publish


def _in_place() -> None:
    def write(path: Path, data: Any, *, scratch: Path) -> None:
        with fsio.storage_errors(path), path.open("wb") as sink:
            sink.write(data)
            sink.flush()
            os.fsync(sink.fileno())
        fsio._sync_path(path.parent)

    fsio.write_durably = write


def _manifest_first() -> None:
    """The sentence file of a shard, which makes it count, is written first, and is believed."""

    def commit(self: Any, number: int, footer: Any, sentences: Any, others: Any) -> None:
        for name, data in {"sentences": sentences, **others}.items():
            fsio.make_folder(self.layout.root / name)
            self._write(name, number, data)
        _note(self, number, footer)

    def finished(self: Any, number: int) -> Any:
        path = self.layout.shard_file("sentences", number)
        if not path.is_file():
            return None
        footer = schema.read_footer(path)
        _note(self, number, footer)
        return footer

    jobs.JobFolder.commit = commit  # type: ignore[method-assign]
    jobs.JobFolder.finished = finished  # type: ignore[method-assign]


def _note(job: Any, number: int, footer: Any) -> None:
    files = {
        name: job.layout.shard_file(name, number) for name in ("sentences", *footer.companions)
    }
    job._note(number, footer, {n: fsio.file_sha256(f) for n, f in files.items() if f.is_file()})


def _nothing_to_compare() -> None:
    jobs._check_same = lambda *_, **__: None
    jobs.Job.fingerprint = property(lambda _: "0" * 64)  # type: ignore[assignment, method-assign]


def _no_job_of_a_run() -> None:
    run_folder._check_job = lambda *_, **__: None


def _no_lock() -> None:
    _plant(fsio, "exclusive", lambda _: nullcontext())


def _no_checksum_of_files() -> None:
    checksums._compare = lambda *_: 0
    _plant(fsio, "file_sha256", lambda _: "0" * 64)


def _no_checksum_of_pages() -> None:
    class Equal(int):
        def __ne__(self, _: object) -> bool:
            return False

    _plant(parquet_pages, "isal_zlib", SimpleNamespace(crc32=lambda *_: Equal()))


def _no_blocks() -> None:
    checksums.BLOCK = 1 << 10  # so that the files are large
    _plant(checksums, "block_sums", lambda _, size: ["0" * 64] * -(-size // checksums.BLOCK))


def _no_checksum_of_cached_vectors() -> None:
    _plant(sklearn, "_is_whole", lambda *_: True)


def _no_checksum_of_mapped_vectors() -> None:
    real = matrix_files.matrix_shape
    _plant(store, "matrix_shape", lambda file, verify: real(file, verify=False))


def _old_one_deleted_first() -> None:
    def publish(work: Path, out: Path, *, private: str = artefacts.UNFINISHED) -> None:
        fsio.remove_tree(out)
        fsio.publish_folder(work, out)
        fsio.remove_tree(out / private)

    for module in (artefacts, jobs):
        _plant(module, "publish", publish)


Check = Callable[[Harness], object]


def _faults(kind: str, every: int = 1) -> Check:
    def check(harness: Harness) -> None:
        for at in range(0, len(harness.operations()), every):
            harness.fault(at, kind)

    return check


def _cuts(every: int = 1) -> Check:
    return lambda harness: harness.power_cuts(slice(0, None, every))


def _locks(harness: Harness) -> None:
    harness.locks(harness.operations())


def _others(harness: Harness) -> None:
    harness.others(harness.operations(), 6)


MUTANTS: dict[str, tuple[Callable[[], object], str, Check]] = {
    "no fsync": (partial(_no_fsync, True, True), "split", _cuts()),
    "no fsync of files": (partial(_no_fsync, False, True), "split", _cuts()),
    "no fsync of folders": (partial(_no_fsync, True, False), "extract", _cuts(3)),
    "publish_folder without fsync": (_publish_without_fsync, "index --overwrite", _cuts()),
    "copy instead of rename": (_copy_for_rename, "export", _faults("killed before")),
    "written in place": (_in_place, "split", _faults("killed before")),
    "manifest first": (_manifest_first, "extract", _faults("killed before", 2)),
    "the old one deleted first": (
        _old_one_deleted_first, "index --overwrite", _faults("killed before")),
    "no lock": (_no_lock, "extract", _locks),
    "no fingerprint": (_nothing_to_compare, "extract", _others),
    "no settings of a run": (_no_job_of_a_run, "finetune", _others),
    "no checksum of files": (_no_checksum_of_files, "finetune", lambda h: h.flips(8)),
    "no checksum of blocks": (_no_blocks, "index", lambda h: h.flips(20)),
    "no checksum of cached vectors": (
        _no_checksum_of_cached_vectors, "cache of encoded texts", lambda h: h.flips(60)),
    "no checksum of mapped vectors": (
        _no_checksum_of_mapped_vectors, "cache of mapped vectors", lambda h: h.flips(10)),
    "no checksum of pages": (_no_checksum_of_pages, "extract", lambda h: h.flips(20)),
}  # fmt: skip
"""What is planted, the command, and what finds it."""


def _bad(name: str, prepared: Path, folder: Path) -> Any:
    plant, command, check = MUTANTS[name]
    plant()
    harness = Harness(command, prepared, folder)
    check(harness)
    return [sum(harness.counts.wrong.values()), harness.counts.lines[:3]]


def main() -> int:
    names = sys.argv[1:] or list(MUTANTS)
    survivors = []
    prepare()
    with tempfile.TemporaryDirectory(prefix="embedkit-mutants-") as top:
        prepared = base(Path(top) / "prepared", {"data", "tuned"})
        for number, name in enumerate(names):
            started = time.time()
            found = Child(partial(_bad, name, prepared, Path(top) / str(number))).result()
            caught = found is not None and found[0]  # not where the harness itself fails
            survivors += [] if caught else [name]
            print(f"{name}: {'found' if caught else 'SURVIVED'} {found} "
                  f"({time.time() - started:.0f} s)", flush=True)  # fmt: skip
    print(f"mutants {len(names)}, survivors {len(survivors)}")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
