"""Download a file with a known SHA-256."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote

from embedkit import fsio
from embedkit._version import __version__
from embedkit.errors import MismatchError, StorageError, UsageError

__all__ = ["fetch"]

_SECONDS = 30


def fetch(url: str, *, sha256: str, out: str | Path) -> bool:
    """Download a file with this hash unless ``out`` has it already.

    The file is written to a temporary name and renamed when its hash is right. An existing file
    with another hash is never replaced.

    Args:
        url: ``https://`` or ``http://``.
        sha256: 64 hex digits.
        out: the file.

    Returns:
        Whether it was downloaded.

    Raises:
        UsageError: the address or the hash cannot be used.
        MismatchError: the existing or the downloaded file has another hash.
        StorageError: the network or the file system refused.
    """
    wanted, target = sha256.lower(), Path(out)
    if not re.fullmatch(r"[0-9a-f]{64}", wanted):
        raise UsageError(f"sha256={sha256!r}: expected 64 hex digits.")
    if not re.match(r"https?://([^/\[\]]|\[[^/\]]+\])", url):
        raise UsageError(f"{url}: expected an address that begins with https:// or http://.")
    if target.is_dir():
        raise UsageError(f"out={str(target)!r} is a folder; expected a file name.")
    if target.is_file():
        found = fsio.file_sha256(target)
        if found == wanted:
            return False
        raise MismatchError(
            f"{target} exists with another hash ({found[:16]}…, expected {wanted[:16]}…). "
            "Move it away, or pass another out."
        )
    fsio.make_folder(target.parent)
    partial = target.with_name(target.name + ".partial")
    try:
        _download(url, partial, target)
        found = fsio.file_sha256(partial)
        if found != wanted:
            raise MismatchError(
                f"{url} has another hash ({found[:16]}…, expected {wanted[:16]}…); nothing was "
                "kept."
            )
        fsio.publish_file(partial, target)
    finally:
        fsio.remove_file(partial)
    return True


def _download(url: str, partial: Path, target: Path) -> None:
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    address = quote(url, safe="%/:=&?~#+!$,;'@()*[]")  # letters beyond ASCII; the rest stays
    request = Request(address, headers={"User-Agent": f"embedkit/{__version__}"})
    try:
        with urlopen(request, timeout=_SECONDS) as source, partial.open("wb") as sink:
            shutil.copyfileobj(source, sink)
            received = sink.tell()
            expected = int(source.headers.get("Content-Length") or received)
        if received < expected:  # reading in pieces does not raise it
            raise ConnectionError(f"it ended after {received:,} of {expected:,} bytes")
    except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise StorageError(
            f"{url} cannot be downloaded: {reason}. Check the network, or put the file at "
            f"{target} yourself."
        ) from error
