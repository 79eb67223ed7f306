"""The command that writes a page to look at: explore."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedkit.choices import LAYOUT_METHODS
from embedkit.cli.command import Result, command
from embedkit.cli.options import FILE, option, options
from embedkit.cli.progress import progress_bar
from embedkit.display import bytes_text, visible

if TYPE_CHECKING:
    from embedkit.explore.page import Explored

__all__ = ["explore"]


@command(
    "embedkit explore reviews.vectors",
    "embedkit explore reviews.vectors --view cls_6 --color n_tokens --out reviews.html",
    "embedkit explore reviews.vectors --layers -1 --method umap",
)
@click.argument("dataset", type=FILE)
@options(
    "--view",
    option("--layers", default="all", help="Stored layers for the slider, such as all, -1 or "
           "0,6,12, with the pooling of --view."),
    option("--method", default="tsne", type=click.Choice(LAYOUT_METHODS),
           help="Layout in two dimensions; umap needs: pip install umap-learn."),
    option("--color", help="Column for the first colours; the page offers all. [label]"),
    option("--out", type=FILE, help="The page. [DATASET.explore.html]"),
    option("--limit", default=100_000,
           help="Maximum number of records; of more, a random sample is shown."),
    "--seed", "--overwrite", "--progress/--no-progress",
)  # fmt: skip
def explore(dataset: Path, out: Path | None, progress: bool | None, **settings: Any) -> Result:
    """Write a page that shows texts as points, layer by layer.

    The page is one HTML file with search, colours, selections and nearest neighbours. Layouts are
    t-SNE on lists of nearest neighbours, with repulsion by Fourier transforms: 750 iterations for
    the first layer, 300 for each other one, which begins where its neighbour ended. Above 20,000
    records neighbours are found by an index and later layers have 150 iterations; the page states
    the recall of the index. It also states, for each layer, the fraction of nearest neighbours
    that the picture keeps.
    """
    from embedkit.explore.page import explore as write

    where = out or Path(f"{dataset.resolve().name}.explore.html")
    with progress_bar() as report:
        found = write(dataset, out=where, progress=report, **settings)
    return Result(found, lambda: _text(found), finding=True)


def _text(found: Explored) -> str:
    first = next(one for one in found.views if one.view == found.shown)
    count = f"{found.points:,} records"
    if found.points < found.records:
        count += f" of {found.records:,}"
    lines = [f"{found.page}: {count}, {len(found.views)} views, {bytes_text(found.nbytes)}"]
    kept = f"the picture keeps {first.kept:.0%} of the ten nearest neighbours"
    if not math.isnan(first.same_label):
        best = max(found.views, key=lambda one: one.same_label)
        kept += f"; {first.same_label:.0%} of them have the label of their text"
        kept += f" (chance {found.chance:.0%}; most at {best.view}: {best.same_label:.0%})"
    lines += [f"  {found.shown}: {kept}", f"  with a server: {found.atlas}"]
    return visible("\n".join(lines))
