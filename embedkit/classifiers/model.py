"""Fitted pipelines as files, without pickle.

    model/pipeline.safetensors   the arrays of a pipeline, and what lies around them as JSON
    model/pipeline.skops         instead, a pipeline with classes that are not in KINDS
    model/booster.txt            besides, LightGBM's own text of a last step of LightGBM

    {"Pipeline": {"steps": [{"tuple": ["rows", {"Normalizer": {"norm": "l2"}}]},
                            {"tuple": ["estimator", {"LogisticRegression":
                                                     {"C": 1.0, "coef_": {"array": "0"}}}]}]}}

Nothing but the classes of :data:`KINDS`, arrays and plain values can be built from the first form.
The default pipeline is not even built: two divisions, a product and a softmax need no scikit-learn,
whose import takes longer than an answer. skops takes any estimator, and asks scikit-learn for all
that there are when it is imported. That imports each of its packages, and with one of them torch:
seconds before every ``train`` and ``predict``, which only estimators named by their class need to
spend.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit import storage
from embedkit.encoding.words import WORDS
from embedkit.errors import DamagedError, UsageError, first_line
from embedkit.storage import check_files

_SCALER = "embedkit.classifiers.estimators"

_BY_MODULE = {
    "sklearn.pipeline": ("Pipeline", "FeatureUnion"),
    "sklearn.compose": ("ColumnTransformer",),
    "sklearn.impute": ("SimpleImputer",),
    # LabelBinarizer is inside of OneVsRestClassifier
    "sklearn.preprocessing": ("StandardScaler", "Normalizer", "LabelBinarizer"),
    _SCALER: ("CommonScaler",),
    "sklearn.linear_model": ("LogisticRegression", "Ridge"),
    "sklearn.neighbors": ("KNeighborsClassifier", "KNeighborsRegressor"),
    # _ConstantPredictor is of a class that every training record has
    "sklearn.multiclass": ("OneVsRestClassifier", "_ConstantPredictor"),
    "sklearn.feature_extraction.text": ("TfidfVectorizer", "TfidfTransformer"),
}
KINDS = {name: module for module, names in _BY_MODULE.items() for name in names}
"""Classes that a file may hold, with the modules that have them."""

_PLAIN = (type(None), bool, int, float, str)
_JSON = "pipeline"  # the array that holds it, as bytes: a header of safetensors has a limit
_UNPACKED, _LARGE = 100, 1 << 30


def save_model(folder: Path, pipeline: Any) -> None:
    """Write a fitted pipeline to the ``model`` folder of a run."""
    from sklearn.pipeline import Pipeline

    where = folder / "model"
    storage.make_folder(where)
    last = pipeline.steps[-1][1]
    # LightGBM writes its trees as a text of its own, which needs no unpickling to be read. The
    # steps in front of it stay a pipeline, whose last step does nothing
    if hasattr(last, "booster_"):
        text = last.booster_.model_to_string()
        storage.write_durably(where / "booster.txt", text.encode())
        pipeline = Pipeline([*pipeline.steps[:-1], ("booster", "passthrough")])
    # the content is made before the file is named, so that nothing is written where it cannot be
    try:
        name, content = "pipeline.safetensors", _content(pipeline)
    except TypeError:
        name, content = "pipeline.skops", _by_skops(pipeline)
    storage.write_durably(where / name, content)


def _content(pipeline: Any) -> bytes:
    """A file of a pipeline; ``TypeError`` if it holds something of another kind."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {}
    # _plain fills the arrays on its way
    text = json.dumps(_plain(pipeline, arrays))
    return save(arrays | {_JSON: np.frombuffer(text.encode(), np.uint8)})


def _plain(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """A value as JSON has it; its arrays join the others."""
    # by the exact type: np.float64 is a float too, and has to come back as a NumPy number
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_plain(item, arrays) for item in value]
    if kind is tuple:
        return {"tuple": [_plain(item, arrays) for item in value]}
    if kind is dict and {*map(type, value)} <= {str}:
        # the terms of TF-IDF are numbered from 0, and are hundreds of thousands: as a list without
        # numbers they take half the space
        numbers = value.values()
        if {*map(type, numbers)} <= {int, np.int64} and sorted(numbers) == [*range(len(value))]:
            return {"numbered": sorted(value, key=value.__getitem__)}  # a vocabulary
        return {"dict": {key: _plain(item, arrays) for key, item in value.items()}}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        name = str(len(arrays))
        # safetensors takes contiguous arrays alone; ascontiguousarray makes (1,) of a number,
        # reshape ()
        arrays[name] = np.ascontiguousarray(value).reshape(np.shape(value))
        # products with a transposed array may be summed in another order
        form = "array" if value.flags.c_contiguous else "columns"
        return {"scalar" if isinstance(value, np.generic) else form: name}
    if isinstance(value, type) and issubclass(value, np.number):
        return {"dtype": value.__name__}
    if isinstance(value, np.dtype) and value.kind in "biuf":  # an imputer knows that of its input
        return {"dtype of arrays": value.name}
    if kind is slice:
        return {"slice": [value.start, value.stop, value.step]}
    # a class of the same name from elsewhere is another class
    if KINDS.get(kind.__name__) is None or kind is not _kind(kind.__name__):
        raise TypeError(f"{kind} is none of {', '.join(KINDS)}")
    state = vars(value).items()
    # an address by which a vectorizer knows a list that it was given
    return {kind.__name__: {k: _plain(v, arrays) for k, v in state if k != "_stop_words_id"}}


def _built(content: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """The value that :func:`_plain` described; :class:`DamagedError` for another class."""
    if isinstance(content, list):
        return [_built(item, arrays) for item in content]
    if not isinstance(content, dict):
        return content
    # every object is written as one name with its value, so that no key of a dict can be taken for
    # one
    ((kind, value),) = content.items()
    match kind:
        case "tuple":
            return tuple(_built(item, arrays) for item in value)
        case "numbered":
            return {key: number for number, key in enumerate(value)}
        case "dict":
            return {key: _built(item, arrays) for key, item in value.items()}
        case "array":
            return arrays[value]
        case "columns":
            return np.asfortranarray(arrays[value])
        case "scalar":
            return arrays[value][()]
        case "dtype":
            return np.dtype(value).type
        case "dtype of arrays":
            return np.dtype(value)
        case "slice":
            return slice(*value)
    if kind not in KINDS:
        raise _Foreign(kind)
    cls = _kind(kind)
    # __init__ takes parameters alone; the state has also what was fitted
    built = cls.__new__(cls)
    vars(built).update((name, _built(item, arrays)) for name, item in value.items())
    return built


class _Foreign(Exception):  # noqa: N818
    """A class that no file may hold."""


def _kind(name: str) -> Any:
    return getattr(import_module(KINDS[name]), name)


def _by_skops(pipeline: Any) -> bytes:
    from skops.io import dumps, get_untrusted_types

    content = _repeatable(dumps(pipeline))
    # a model that could not be loaded is refused when it is saved, not after the vectors are gone
    refused = [name for name in get_untrusted_types(data=content) if not _is_trusted(name)]
    if refused:
        raise UsageError(f"the model holds {refused[0]}, which is never loaded. Take another one.")
    return content


def _repeatable(content: bytes) -> bytes:
    """A skops file without what differs between two equal pipelines: dates, memory addresses."""
    written, numbers = io.BytesIO(), dict[str, str]()

    def number(match: re.Match[str]) -> str:
        return match[1] + numbers.setdefault(match[2], str(len(numbers)))

    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(written, "w") as new:
        # skops names objects, and the files of their arrays, by their addresses; numbers in the
        # order of their first mention are the same for equal pipelines
        schema = re.sub(r'("__id__": |"file": ")(\d+)', number, old.read("schema.json").decode())
        for name in old.namelist():
            data = schema.encode() if name == "schema.json" else old.read(name)
            # the empty group stands for the text in front of the number, of which a file has none
            new_name = re.sub(r"()^(\d+)", number, name)
            # a new ZipInfo has the date 1980-01-01
            new.writestr(zipfile.ZipInfo(new_name), data, zipfile.ZIP_DEFLATED)
    return written.getvalue()


_TRUSTED = ("sklearn.", "scipy.sparse.")


def _is_trusted(name: str) -> bool:
    """True if a type that skops does not trust by itself is a class of scikit-learn's own.

    Modules of scikit-learn also contain functions of other libraries, which are not trusted.
    """
    module, _, cls = name.rpartition(".")
    if not module.startswith(_TRUSTED):
        # CommonScaler, which stands in front of knn: of vectors of at most 15 columns it holds a
        # tree, which KINDS has not; and the type of the columns that an imputer has seen, which
        # skops reads from an empty array
        return name in (f"{_SCALER}.CommonScaler", "numpy.dtype")
    try:
        kind = getattr(import_module(module), cls)
    except (ImportError, AttributeError):
        return False
    # by the module that defines it, not by the one that it was found in
    return isinstance(kind, type) and kind.__module__.startswith(_TRUSTED)


_WORDS = WORDS, r"(?u)\b\w+\b", r"(?u)\b\w\w+\b"
"""Patterns of words: that of :mod:`~embedkit.classifiers.estimators`, that which it had before, and
scikit-learn's own."""
_MOST_GRAMS = 20  # characters or words of a feature; all lengths of a long text fill the memory


def _check_texts(value: Any, seen: set[int]) -> None:
    """Raise :class:`_Foreign` for a vectorizer that would open what its texts name as files.

    Nor may a file bring a pattern of words, whose search may take longer than anyone lives,
    features of any length, or a number of processes.
    """
    if id(value) in seen or isinstance(value, str | bytes | type):
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        inner: Any = value.ravel().tolist() if value.dtype == object else ()
    elif isinstance(value, list | tuple):
        inner = value
    elif isinstance(value, dict):
        # a vocabulary has hundreds of thousands of numbers
        inner = () if {*map(type, value.values())} <= {int, np.int64} else value.values()
    else:
        state = getattr(value, "__dict__", {})
        inner = state.values()
        if state.get("input", "content") != "content":
            raise _Foreign("a vectorizer of files")
        if state.get("token_pattern") not in (None, *_WORDS):
            raise _Foreign("a pattern of words")
        if not all(0 < n <= _MOST_GRAMS for n in state.get("ngram_range") or ()):
            raise _Foreign("n-grams of any length")
        if state.get("n_jobs") not in (None, 1):
            raise _Foreign("a number of processes")
    for item in inner:
        _check_texts(item, seen)


def _of_skops(content: bytes) -> Any:
    from skops.io import get_untrusted_types, loads

    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        # arrays are a few times as large as their packed form, those of many classes, nearly all 0,
        # a hundred times; a thousand is a trap
        size = sum(part.file_size for part in packed.infolist())
        if size > max(_LARGE, _UNPACKED * len(content)):
            raise _Foreign("much more than its size")
    # the names are read without building anything; only then is the content loaded
    types = get_untrusted_types(data=content)
    for name in types:
        if not _is_trusted(name):
            raise _Foreign(name)
    return loads(content, trusted=types)


def load_model(run: Path) -> Callable[[Any], Any]:
    """Return a function: features → probabilities ``(n, classes)``, or values ``(n,)``."""
    from safetensors.numpy import load

    check_files(run, ["model"], advice="Make the run again.")
    file = run / "model" / "pipeline.safetensors"
    # one of the two, never both
    file = file if file.is_file() else file.with_suffix(".skops")
    apply = None
    try:
        content = file.read_bytes()
        if file.suffix == ".skops":
            pipeline = _of_skops(content)
        else:
            arrays = load(content)
            written = json.loads(arrays.pop(_JSON).tobytes())
            apply = _by_numpy(written, arrays)
            pipeline = None if apply else _built(written, arrays)
        _check_texts(pipeline, set())
    except _Foreign as error:
        raise DamagedError(f"{file} holds {error}, which is never loaded from a file.") from error
    except Exception as error:  # skops raises what its nodes raise
        raise storage.unreadable(file, error) from error
    # a regression has values alone; beside a booster the pipeline has neither, since its last step
    # does nothing
    apply = apply or getattr(pipeline, "predict_proba", getattr(pipeline, "predict", None))
    if (booster := file.with_name("booster.txt")).is_file():
        apply = _boosted(pipeline, booster)
    if apply is None:
        raise DamagedError(f"{file} holds {type(pipeline).__name__}, which cannot predict.")
    if pipeline is not None:
        from sklearn import config_context

        # arrays between its steps, whatever a program wants of steps of its own
        apply = config_context(transform_output="default")(apply)

    def call(features: Any) -> Any:
        try:
            return apply(features)
        except Exception as error:  # a model raises what its steps raise
            raise DamagedError(
                f"{file} does not fit the run: {first_line(error)}. Make the run again."
            ) from error

    return call


def _by_numpy(written: Any, arrays: dict[str, NDArray[Any]]) -> Callable[[Any], Any] | None:
    """The default pipeline by the operations of scikit-learn, with the same bits; else nothing."""
    match written:
        case {
            "Pipeline": {
                "steps": [
                    {"tuple": [_, {"Normalizer": {"norm": "l2"}}]},
                    {"tuple": [_, {"CommonScaler": scaler}]},
                    {"tuple": [_, {"LogisticRegression": model}]},
                ]
            }
        }:
            mean, scale = (_built(scaler[name], arrays) for name in ("mean_", "scale_"))
            coef, intercept = (_built(model[name], arrays) for name in ("coef_", "intercept_"))
        case _:
            return None

    def apply(features: Any) -> Any:
        X = np.array(features)
        norms = np.sqrt(np.einsum("ij,ij->i", X, X))
        norms[norms < 10 * np.finfo(X.dtype).eps] = 1  # a row of zeros stays one
        X /= norms[:, None]
        X -= mean.astype(X.dtype)
        X /= scale.astype(X.dtype)
        scores = X @ coef.T + intercept
        if len(coef) == 1:
            from scipy.special import expit

            second = expit(scores[:, 0])
            return np.stack([1 - second, second], axis=1)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True)

    return apply


def _boosted(pipeline: Any, file: Path) -> Callable[[Any], Any]:
    import lightgbm

    kinds = (lightgbm.basic.LightGBMError, KeyError, OverflowError, ValueError)
    with storage.reading(file, *kinds):
        text = _checked_trees(file.read_text("utf-8"))
        booster = lightgbm.Booster(model_str=text)

    def apply(features: Any) -> Any:
        values = np.asarray(booster.predict(pipeline.transform(features)))
        # the booster gives the probability of the second class alone
        if "\nobjective=binary" in text:  # older releases read no parameters from it
            return np.stack([1 - values, values], axis=1)
        return values

    return apply


_NODES = ("split_feature", "decision_type", "left_child", "right_child")
"""Integers of the inner nodes of a tree: a child is the number of a node, or of a leaf below 0."""


def _checked_trees(text: str) -> str:
    """The text of a booster, written anew from what was checked, so that nothing else is read.

    LightGBM trusts it: a cycle has no end, and a node, a feature or a class that does not exist is
    read or written behind an array. Nodes are numbered as they are made, so that every child has a
    higher number than its parent. A :class:`ValueError` is raised for all that training here does
    not write, such as trees of categories.
    """
    blocks = [
        dict(re.findall(r"^(\w+)=([^=\n]*)$", block, re.MULTILINE | re.ASCII))
        for block in text.partition("\nend of trees")[0].split("\nTree=")
    ]
    head, *trees = blocks
    head.pop("tree_sizes", None)  # places in the text as it was
    width, count = len(head["feature_names"].split()), head["num_class"]
    rules = [
        re.fullmatch(r"[\n -~]*", text) is not None,
        head["objective"] in ("regression", "binary sigmoid:1", f"multiclass num_class:{count}"),
        head["num_tree_per_iteration"] == count == str(int(count)),
        0 < int(count) <= len(trees),
        head["max_feature_idx"] == str(width - 1),
    ]
    for tree in trees:
        n, numbers = int(tree["num_leaves"]) - 1, [tree.get(name, "") for name in _NODES]
        feature, decision, *children = np.array([row.split() for row in numbers], np.int64)
        child, later = np.stack(children), np.arange(len(feature)) + 1
        rules += [
            (tree["num_leaves"], len(feature)) == (str(n + 1), n),
            not re.search(r"[^-\d ]", "".join(numbers)),  # as int() reads more than LightGBM does
            (tree.get("num_cat"), tree.get("is_linear", "0")) == ("0", "0"),
            not (decision & 1).any(),  # of a category
            bool(((feature >= 0) & (feature < width)).all()),
            bool(np.where(child < 0, child >= -n - 1, (child >= later) & (child < n)).all()),
        ]
    if not all(rules):
        raise ValueError("it is not a model that embedkit writes")
    written = ["\n".join(f"{name}={value}" for name, value in b.items()) for b in blocks]
    return "tree\n" + "\n\nTree=0\n".join(written) + "\n\nend of trees\n"  # in their order
