"""Datasets and corpora at an address: s3://, gs://, az://, hf:// and https://.

    address --store_of--> fsspec's file system --> a copy in the cache, kept by the store's checksum
    folder --upload--> files whose checksum the store does not have yet, then
    SHA256SUMS, and the manifest last

Names that a remote list gives become paths by :func:`~embedkit.storage.path_inside` alone. An
address may carry a password or a signature; what is written or shown has neither.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from embedkit.errors import EmbedkitError, OutputExistsError, StorageError, UsageError, first_line
from embedkit.storage import FULL, SUMS, file_sums, without_secrets
from embedkit.types import AnyPath

PROTOCOLS = ("https", "http", "s3", "gs", "az", "hf")
"""Protocols of addresses, by the packages of fsspec."""


# one slash or more: pathlib makes s3:/bucket of s3://bucket
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+([^/].*)")


# an ETag that can be computed here: an MD5, or that of parts with their number behind it
_TAG = re.compile(r"[0-9a-f]{32}(-[1-9][0-9]{0,4})?")


_TAGGED_BYTES = 50 << 20  # parts in which s3fs sends large files


def cache_folder(*, make: bool = True) -> Path:
    """The folder for what can be made again; made if it is missing, unless it is only looked at."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "embedkit")
        if make:
            folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # users of containers may have no home, or / as theirs
        advice = "Set XDG_CACHE_HOME to a folder that you may write to."
        raise StorageError(f"there is no place for the cache ({error}). {advice}") from error
    return folder


def address_of(path: AnyPath) -> str:
    """The address, such as ``s3://bucket/name``, that a path spells; empty for a local path."""
    match = _ADDRESS.fullmatch(os.fspath(path))  # of which pathlib has removed a slash
    if match is None:
        return ""
    address = f"{match[1]}://{match[2]}"
    shown = without_secrets(address)
    if match[1] not in PROTOCOLS or "::" in address:  # fsspec has more, and chains of them
        protocols = ", ".join(f"{name}://" for name in PROTOCOLS)
        raise UsageError(f"{shown}: expected a path, or an address of {protocols}.")
    # both spellings lead to what may be shown: messages name whichever they had
    spelled.update({address: shown, os.fspath(path): shown})
    return address


spelled: dict[str, str] = {}
"""Addresses as they may be shown, by how they were given and by the path of the local copy."""


def as_given(text: str) -> str:
    """A text with the addresses of object stores as they were given, without their secrets."""
    for path, address in spelled.items():
        # the folder of work is local, and is named by its local path after all
        text = text.replace(path, address).replace(f"{address}.incomplete", f"{path}.incomplete")
    return text


FIRST = "_embedkit/job.json"
"""The file of a dataset that is written first, and claims the place."""


def check_place(store: Any, root: str, shown: str) -> dict[str, Any]:
    """What is below an address, by name; an error if it is no dataset, nor the beginning of one."""
    listing = {n[len(root) + 1 :]: d for n, d in store.find(root, detail=True).items()}
    if listing and FIRST not in listing:
        files = f", such as {min(listing)}" if min(listing) else ", or is one"
        problem = f"holds other files{files}, and is not replaced"
        raise OutputExistsError(f"{shown} {problem}. Choose another address.")
    return listing


def upload(folder: Path, address: str, *, last: str, replace: bool) -> None:
    """Copy a sealed folder to an object store, where it is complete when it has the file ``last``.

    The file :data:`FIRST` tells that the files there are of this folder, so that an interrupted
    upload is continued. Both are written only where there are none, unless they may be replaced.
    Files that are there with the same content stay, unless all may be replaced. An address under
    which there are files without it is somebody else's, and nothing is changed there.
    """
    sums, shown = file_sums(folder), without_secrets(address)
    with store_of(address) as (store, root):
        listing = check_place(store, root, shown)

        def create(name: str) -> bool:
            """Write a file; ``False`` if there is one, which is the same or may be replaced."""
            content, place = (folder / name).read_bytes(), f"{root}/{name}"
            try:
                # of two uploads to one address one gets an error here, and compares itself with the
                # other
                store.pipe_file(place, content, mode="create")
            except FileExistsError:
                if not replace and bytes(store.cat_file(place)) != content:
                    problem = "holds another dataset, or a part of it"
                    advice = "Choose another address, or overwrite it"
                    raise OutputExistsError(f"{shown} {problem}. {advice}.") from None
                return False
            return True

        is_new = create(FIRST)

        def stays(name: str) -> bool:
            """True if this content is there, by the checksum of the store, else by reading it."""
            # the size is in the listing, and tells most differences without reading a byte
            if name not in listing or listing[name]["size"] != (folder / name).stat().st_size:
                return False
            tag = str(listing[name].get("ETag") or "").strip('"')
            return (
                _has_tag(folder / name, tag) or stored_sha256(store, f"{root}/{name}") == sums[name]
            )

        # nothing of this dataset was there: what other files are there is not worth a comparison
        kept = {FIRST} if is_new else {n for n in sums if not replace and stays(n)}
        todo = [name for name in sums if name not in kept]
        # as long as files are replaced the address is no dataset: nobody reads half of each
        if last in listing and any(name in listing for name in todo if name not in (FIRST, last)):
            store.rm_file(f"{root}/{last}")
        # the sums after the files that they list, the manifest after both
        for name in [*(n for n in todo if n != last), SUMS]:
            store.put_file(str(folder / name), f"{root}/{name}")
        if not create(last):
            store.put_file(str(folder / last), f"{root}/{last}")
        # last, when the new dataset is complete: files that only an earlier one had
        for name in listing.keys() - {*sums, SUMS}:
            store.rm_file(f"{root}/{name}")


def _has_tag(file: Path, tag: str) -> bool:
    """True if a file has this ETag of S3: its MD5, or that of the MD5 of its parts."""
    if not _TAG.fullmatch(tag):
        return False
    md5 = partial(hashlib.md5, usedforsecurity=False)
    with file.open("rb") as stream:
        if "-" not in tag:
            return hashlib.file_digest(stream, md5).hexdigest() == tag
        # parts of another size give another tag, and the file is read from the store instead
        parts = [md5(part).digest() for part in iter(partial(stream.read, _TAGGED_BYTES), b"")]
    return f"{md5(b''.join(parts)).hexdigest()}-{len(parts)}" == tag


def stored_sha256(store: Any, place: str) -> str:
    """SHA-256 in hex of the bytes of a file in an object store, which are all read."""
    with store.open(place, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def store_of(
    address: str, *, error: type[EmbedkitError] = StorageError
) -> Iterator[tuple[Any, str]]:
    """The file system of an address, and the path in it; an ``error`` if it cannot be reached."""
    import fsspec

    shown = without_secrets(address)
    try:
        store, root = fsspec.url_to_fs(address)
        if address.startswith("http"):
            import aiohttp

            # by default it ends every answer after five minutes, however fast it comes in
            patience = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
            store, root = fsspec.url_to_fs(address, client_kwargs={"timeout": patience})
        # fsspec keeps file systems and their listings: other processes may have written meanwhile
        store.invalidate_cache()
        yield store, root.rstrip("/")
    except ImportError as problem:  # its message says what to install
        raise error(f"{shown}: {first_line(problem)}.") from problem
    except EmbedkitError:
        raise
    except Exception as problem:  # every file system has errors of its own
        cause = problem.__cause__
        if getattr(problem, "errno", None) in FULL:
            raise
        # which fsspec also raises where there is no connection, and for other answers than 404
        missing = isinstance(problem, FileNotFoundError) and getattr(cause, "status", 404) == 404
        if missing and (not isinstance(cause, OSError) or isinstance(cause, FileNotFoundError)):
            raise error(f"{shown} does not exist.") from problem
        reason = without_secrets(first_line((missing and cause) or problem)).rstrip(".")
        raise error(f"{shown} cannot be reached: {reason}.") from problem
