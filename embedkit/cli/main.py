"""The command line: each command parses, makes one library call, and prints.

Results go to standard output, everything else to standard error. torch and transformers are loaded
by the commands that need them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from embedkit._version import __version__
from embedkit.cli.doctor import doctor
from embedkit.cli.experiment import compare, fetch, run
from embedkit.cli.finetune import finetune
from embedkit.cli.messages import Commands
from embedkit.cli.options import (
    corpus_options,
    model_options,
    notifier,
    output_options,
    reading_of,
    show_progress,
)
from embedkit.cli.results import predict, probe, split, train
from embedkit.cli.search import index, map_, search, similarity, words
from embedkit.display import visible
from embedkit.errors import (
    EXIT_REJECTS,
    EmbedkitError,
    ModelError,
    StorageError,
    UsageError,
    did_you_mean,
)
from embedkit.machine import set_wait_policy

if TYPE_CHECKING:
    from embedkit.dataset.planning import ExtractPlan

__all__ = ["cli", "main"]

F = TypeVar("F", bound=Callable[..., Any])

_EXTRACT_EXAMPLES = """\b
Examples:
  embedkit extract reviews.tsv
  embedkit extract reviews.tsv --layers all --pooling cls,mean,pooler --out vectors
  embedkit extract talks.jsonl.gz --text body --on-long window --words --dry-run
  zcat big.tsv.gz | embedkit extract - --format tsv --out big.vectors
"""


def main() -> NoReturn:
    """Run the command line and exit with the code that the README lists."""
    set_wait_policy()  # before the libraries that read it are loaded
    signal.signal(signal.SIGTERM, _terminate)
    stdout = sys.stdout
    if isinstance(stdout, TextIOWrapper):  # names of files may hold what cannot be printed
        stdout.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(standalone_mode=False)
    except EmbedkitError as error:
        _complain(str(error))
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):  # click turns the one into the other
        _complain(_stopped("interrupted"))
        code = 130
    except SystemExit as ended:
        # where the reader of a pipe has gone, click replaces the stream and ends with 1
        code = ended.code if sys.stdout is stdout else 0
    except OSError as error:
        _complain(f"{error.filename or 'input/output'}: {error.strerror or error}.")
        code = StorageError.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _terminate(_signal: int, _frame: object) -> NoReturn:
    _complain(_stopped("terminated"))
    sys.exit(143)


def _stopped(how: str) -> str:
    goes_on = sys.argv[1:2] and sys.argv[1] in ("extract", "finetune", "run")
    return f"{how}; the same command goes on where it stopped." if goes_on else f"{how}."


def _complain(message: str) -> None:
    click.echo(f"embedkit: {visible(message)}", err=True)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExamples:\n"
    "  embedkit extract corpus.tsv      any TSV, CSV, JSONL, Parquet or Arrow file\n"
    "  embedkit info corpus.vectors     what is in it, and how to open it\n",
)
@click.version_option(__version__, prog_name="embedkit")
def cli() -> None:
    """Hidden vectors of BERT-family encoders for whole corpora, and results from those vectors."""


def _no_corpus(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """``--words`` may stand without a value, and then takes a corpus behind it for one."""
    if value is not None and Path(value).is_file():
        raise UsageError(
            f"--words {value}: this is a file, not one of first, last, first_last, mean. "
            "Name the corpus before --words."
        )
    return value


def _vector_options(command: F) -> F:
    """Options that say which vectors are made and how they are stored."""
    for option in reversed((
        click.option("--layers", default="-1", show_default=True,
                     help="all, -1, 0,6,12, -4..-1, sum:-4..-1, mean:-4..-1, concat:-4..-1. "
                     "0 is the embedding output."),
        click.option("--pooling", default="mean", show_default=True,
                     help="cls, mean, max, last_token, pooler; several with commas."),
        click.option("--words", is_flag=False, flag_value="mean", default=None, callback=_no_corpus,
                     metavar="[first|last|first_last|mean]",
                     help="Also write word vectors, from these sub-tokens. [mean]"),
        click.option("--tokens", is_flag=True, help="Also write token vectors."),
        click.option("--max-length", type=int,
                     help="Tokens per text, special ones counted. [what the checkpoint states]"),
        click.option("--on-long", default="truncate", show_default=True,
                     type=click.Choice(["truncate", "window", "error"]),
                     help="What to do with longer texts."),
        click.option("--stride", type=int,
                     help="Tokens that neighbouring windows share. [a quarter of --max-length]"),
        click.option("--special-tokens", default="include", show_default=True,
                     type=click.Choice(["include", "exclude"]),
                     help="Whether mean and max count [CLS] and [SEP]."),
        click.option("--normalize", is_flag=True, help="Scale sentence vectors to length 1 (L2)."),
        click.option("--prefix", default="", help='Put before every text, such as "query: ".'),
        click.option("--precision", type=click.Choice(["auto", "fp32", "bf16", "fp16"]),
                     help="To compute in. auto: on CPU bf16 where a short trial finds it 1.2 × as "
                     "fast. [fp32 on CPU; bf16 on CUDA, fp16 on older devices]"),
        click.option("--storage", default="float32", show_default=True,
                     type=click.Choice(["float32", "float16", "compact"]),
                     help="float16: half the size; compact: 0.43, float32 columns."),
        click.option("--batch-tokens", type=int,
                     help="Tokens per batch. [2,048 on CPU, 65,536 on CUDA]"),
        click.option("--shard-rows", type=int, help="Records per file. [about 64 MB]"),
        click.option("--no-text", is_flag=True, help="Do not write the texts to the output."),
    )):  # fmt: skip
        command = option(command)
    return command


@cli.command(epilog=_EXTRACT_EXAMPLES)
@click.argument("corpus", nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make. [CORPUS.vectors]")
@corpus_options
@click.option("--keep", help="Further columns to carry along, separated by commas.")
@model_options
@_vector_options
@click.option("--dry-run", is_flag=True, help="Tell rows, tokens, bytes, minutes.")
@click.option("--overwrite", is_flag=True, help="Replace what an earlier job made.")
@click.option("--allow-env-change", is_flag=True, help="Resume with other versions or devices.")
@click.option("--progress/--no-progress", default=None, help="[shown on a terminal]")
@output_options
def extract(
    corpus: tuple[str, ...],
    out: Path | None,
    pooling: str,
    no_text: bool,
    special_tokens: str,
    dry_run: bool,
    overwrite: bool,
    allow_env_change: bool,
    progress: bool | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **settings: Any,
) -> int:
    """Turn a corpus into sentence, word and token vectors in Parquet.

    CORPUS is one or more TSV, CSV, JSONL, Parquet or Arrow files, text files also as .gz or .zst,
    or - for standard input. A run that was interrupted goes on where it stopped when the same
    command is given again.
    """
    from embedkit.cli.progress import ProgressBar
    from embedkit.cli.text import json_text, plain, plan_text, result_text, stages_text
    from embedkit.dataset.extraction import run_plan
    from embedkit.dataset.planning import ExtractSettings, plan_extract

    reading = reading_of(settings)
    made = ExtractSettings(
        poolings=pooling.split(","),
        store_text=not no_text,
        special_tokens=special_tokens == "include",
        **settings,
    )
    files = [Path(name) for name in corpus]
    with plan_extract(files, out=out, reading=reading, settings=made) as plan:
        if verbose:
            click.echo(plan_text(plan), err=True)
        if dry_run:
            return _dry_run(plan, overwrite=overwrite, as_json=as_json)
        with ProgressBar(show=show_progress(progress, quiet)) as bar:
            result = run_plan(
                plan,
                overwrite=overwrite,
                allow_env_change=allow_env_change,
                progress=bar.update,
            )
    if verbose:
        click.echo(stages_text(result), err=True)
    if as_json:
        click.echo(json_text({"out": str(result.out), **plain(result.manifest.totals)}))
    elif not quiet:
        click.echo(result_text(result))
    return EXIT_REJECTS if result.manifest.totals.rejected else 0


@cli.command(
    epilog="\b\nExamples:\n  embedkit info corpus.vectors\n  embedkit info runs/logreg\n"
    "  embedkit info klue/bert-base\n"
)
@click.argument("what")
@click.option("--revision", help="Branch, tag or commit of a hub checkpoint.")
@click.option("--offline", is_flag=True, help="Never ask the hub.")
@output_options
def info(
    what: str, revision: str | None, offline: bool, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Tell what is in a dataset, a run or a checkpoint.

    WHAT is a folder that extract wrote, one that train, probe, finetune or similarity wrote, or the
    hub id or folder of a checkpoint.
    """
    path = Path(what)
    if path.is_file():
        raise UsageError(f"{what} is a file. Give the folder of a dataset, a run or a checkpoint.")
    if (path / "run.json").is_file():
        from embedkit.cli.run_text import run_info_text
        from embedkit.cli.text import json_text
        from embedkit.runs.content import as_json as plain_content
        from embedkit.runs.folder import read_run

        content = read_run(path)
        click.echo(json_text(plain_content(content)) if as_json else run_info_text(path, content))
        return
    unfinished = not path.is_dir() and path.with_name(path.name + ".incomplete").is_dir()
    if unfinished or (path.is_dir() and not (path / "config.json").is_file()):
        from embedkit.cli.text import dataset_json, dataset_text
        from embedkit.dataset.inspection import describe_dataset

        dataset = describe_dataset(path)
        click.echo(dataset_json(dataset) if as_json else dataset_text(dataset))
        return
    from embedkit.cli.text import json_text, model_text, plain
    from embedkit.dataset.inspection import describe_model
    from embedkit.encoding.encoder import Encoder

    try:
        encoder = Encoder.load(
            what, revision=revision, offline=offline, device="cpu", precision="fp32",
            forward="transformers", notify=notifier(quiet),
        )  # fmt: skip
    except ModelError as error:
        raise error if path.is_dir() else _not_found(path, error) from error
    model = describe_model(encoder)
    click.echo(json_text(plain(model)) if as_json else model_text(model))


@cli.command(
    epilog="\b\nExamples:\n  embedkit verify corpus.vectors\n"
    "  embedkit verify corpus.vectors --recompute 2\n"
)
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--recompute",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="Embed N random shards again.",
)
@click.option("--model", help="Where the checkpoint is now. [the name it had]")
@click.option("--device", default="auto", show_default=True)
@output_options
def verify(
    out: Path,
    recompute: int,
    model: str | None,
    device: str,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Check that a dataset is whole: checksums, counts, order, finite numbers."""
    from embedkit.cli.text import count_text, json_text, plain
    from embedkit.dataset.verification import require_ok, verify

    found = verify(out, recompute=recompute, model=model, device=device)
    if as_json:
        click.echo(json_text(plain(found)))
    require_ok(found, out)
    if not as_json and not quiet:
        click.echo(
            f"{out}: {count_text(found.files, 'file')}, {found.rows:,} rows, "
            f"{found.values:,} numbers: as written"
        )
        if found.recomputed_shards:
            click.echo(
                f"recomputed {found.recomputed_rows:,} rows of "
                f"{count_text(len(found.recomputed_shards), 'shard')}: "
                f"{found.identical_rows:,} with the same bits, "
                f"largest relative difference {found.worst:.1e}"
            )


@cli.command(
    epilog='\b\nExamples:\n  embedkit tokenize "배를 타고 여행을 간다."\n'
    "  embedkit tokenize --vocab 2000:2010\n"
)
@click.argument("text", required=False)
@click.option("--pair", help="Second text of a pair.")
@click.option("--vocab", metavar="FROM:TO", help="List a slice of the vocabulary instead.")
@click.option("--max-length", type=int, help="Tokens per text. [what the checkpoint states]")
@click.option("--prefix", default="", help="Put before the text.")
@model_options
@output_options
def tokenize(
    text: str | None,
    pair: str | None,
    vocab: str | None,
    max_length: int | None,
    prefix: str,
    model: str,
    revision: str | None,
    offline: bool,
    device: str,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Show what the model sees of a text: tokens, ids, segments, offsets, words."""
    from embedkit.cli.text import json_text, table_text
    from embedkit.encoding.tokenization import explain, open_tokenizer, vocabulary_slice

    if (text is None) == (vocab is None):
        raise UsageError("give either a text or --vocab FROM:TO.")
    if vocab is not None and pair is not None:
        raise UsageError("--pair goes with a text, not with --vocab.")
    tokenizer, settings = open_tokenizer(
        model, revision=revision, offline=offline, max_length=max_length, prefix=prefix,
        notify=notifier(quiet),
    )  # fmt: skip
    if vocab is not None:
        rows = vocabulary_slice(tokenizer, vocab)
    else:
        rows = explain(tokenizer, str(text), pair, settings=settings, notify=notifier(quiet))
    if as_json:
        click.echo(json_text(rows))
    else:
        click.echo(table_text(rows))


def _dry_run(plan: ExtractPlan, *, overwrite: bool, as_json: bool) -> int:
    from embedkit.cli.text import estimate_text, json_text, plain
    from embedkit.dataset.estimate import estimate
    from embedkit.dataset.jobs import what_is_there

    there = what_is_there(plan.out, plan.job(), overwrite=overwrite)
    cost = estimate(plan)
    if as_json:
        click.echo(json_text({**plain(cost), "output": there}))
    else:
        click.echo(estimate_text(plan, cost, there=there))
    return 0


def _not_found(path: Path, error: ModelError) -> ModelError:
    """What to say of a name that is no folder, and no checkpoint that can be had either."""
    near = ""
    if path.parent.is_dir():
        near = did_you_mean(path.name, (p.name for p in path.parent.iterdir() if p.is_dir()))
    reason = str(error).removeprefix(f"--model {path}: ")
    return ModelError(
        f"{path} is neither a dataset nor a run: there is no such folder.{near} "
        f"As a checkpoint: {reason}"
    )


for _command in (
    split, train, probe, finetune, predict,
    compare, run, fetch,
    search, index, similarity, words, map_, doctor,
):  # fmt: skip
    cli.add_command(_command)
