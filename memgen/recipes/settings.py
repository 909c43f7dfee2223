"""Recipe: every setting of a model and its training, validated when it is read.

The tables ATTENTIONS, SPARSE_ATTENTIONS, COMPOSITIONS, NORMS, LIKELIHOODS, BOUNDS, ESTIMATORS and DATASETS say which
names exist. How a recipe is written as TOML is the subject of document.py, what is wrong with one that of checks.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass as plain_dataclass
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from memgen.core.layers import NORMS
from memgen.core.likelihoods import LIKELIHOODS
from memgen.core.memory import ATTENTIONS, COMPOSITIONS, SPARSE_ATTENTIONS
from memgen.core.objective import BOUNDS, ESTIMATORS
from memgen.data.own import HEADERS, STREAM
from memgen.data.written import LOCALES
from memgen.errors import MemgenError
from memgen.recipes import document
from memgen.recipes.checks import choice, contradictions, made
from memgen.recipes.fields import LARGEST, LONGEST, STRICT, Counts, Latent, Layers, Sizes, Texts, Weights


@dataclass(config=STRICT)
class Data:
    """[data]"""

    name: str = Field(default="digits", description="the data set, or the path of your own data")
    train_on: Annotated[str, choice("train", "train+valid")] = Field(
        default="train", description="the rows to train on; with train+valid nothing is held out"
    )
    size: str = Field(default="", description="own images: made to have this size, as in 28x28; empty: as they are")
    levels: int = Field(
        default=0,
        ge=0,
        le=255,
        description="own images: the largest level of a pixel, by which pixels are divided; 0: as the pixels show",
    )
    kinds: Texts = Field(default=(), description="own tables: kinds of columns that are given, as in age=count")
    ignore: Texts = Field(default=(), description="own tables: columns that are not modelled")
    locale: Annotated[str, choice(*LOCALES)] = Field(
        default="auto", description="own tables: how numbers and dates are written; auto: as the cells show"
    )
    header: Annotated[str, choice(*HEADERS)] = Field(
        default="auto", description="own tables: whether the first line has names"
    )
    test: str = Field(default="", description="own data: a file of test rows; none of the others are test rows then")
    stream: Annotated[str, choice(*STREAM)] = Field(default="auto", description="own data: leave rows in the file")


@dataclass(config=STRICT)
class Model:
    """[model]; lists go from the data upwards, with one list per level where there are several levels."""

    hidden: Sizes = Field(default=((200, 200),), description="units of the deterministic layers")
    latent: Latent = Field(default=(50,), description="size of z at each level")
    slots: Counts = Field(
        default=(), description="slots of each layer's memory, 0 for none; [] for a model without memory"
    )
    encoder: Layers = Field(
        default=(), description="in place of hidden and slots: the layers of Q, in the order in which they run"
    )
    decoder: Layers = Field(
        default=(), description="in place of hidden and slots: the layers of P, in the order in which they run"
    )
    attention: Annotated[str, choice(*ATTENTIONS, *SPARSE_ATTENTIONS)] = Field(
        default="sigmoid", description="how a layer prefers slots"
    )
    top: int = Field(
        default=32, ge=1, le=LARGEST, description="attention top and product: how many slots an input reads"
    )
    composition: Annotated[str, choice(*COMPOSITIONS)] = Field(
        default="mlp", description="how memory and layer are put together"
    )
    norm: Annotated[str, choice(*NORMS)] = Field(
        default="batch", description="normalisation of the deterministic layers"
    )
    norm_epsilon: float = Field(
        default=1e-5,
        gt=0,
        description="added to a variance before its root is taken: by the norm and the local reconstruction",
    )
    likelihood: Annotated[str, choice("auto", *LIKELIHOODS)] = Field(
        default="auto", description="p(x|z); auto: what the data set asks for"
    )
    sigma_floor: float = Field(
        default=0.0,
        ge=0,
        description="least sigma of a gaussian likelihood; mixed: in units of each column's deviation, 0 stands for "
        "0.01",
    )
    categories: int = Field(default=2, ge=2, le=LARGEST, description="number of categories of a categorical likelihood")
    mask: bool = Field(default=False, description="tell Q which entries are observed, to train on incomplete rows")
    skip: bool = Field(default=False, description="a linear path around the layers of P and Q")
    start: Annotated[str, choice("random", "mean", "linear")] = Field(
        default="random",
        description="random: the paper's values; mean: these, and the output's bias at the mean of the rows; linear: "
        "probabilistic PCA of the rows, with skip",
    )


@dataclass(config=STRICT)
class Objective:
    """[objective]"""

    samples: int = Field(default=1, ge=1, le=LARGEST, description="K, samples of z per row")
    bound: Annotated[str, choice(*BOUNDS)] = Field(
        default="importance", description="what is maximised; the two are equal at samples = 1"
    )
    estimator: Annotated[str, choice(*ESTIMATORS)] = Field(default="plain", description="the gradient estimator")
    local_reconstruction: Weights = Field(default=(), description="lambda of each layer; [] for none")
    kl_warmup_epochs: float = Field(
        default=0.0, ge=0, description="epochs in which the weight of the KL term rises from 0 to 1"
    )


@dataclass(config=STRICT)
class Training:
    """[training]"""

    epochs: int = Field(default=100, ge=1, le=LONGEST, description="passes over the training rows")
    batch_size: int = Field(default=100, ge=1, le=LARGEST, description="rows per step")
    drop_incomplete: bool = Field(default=False, description="leave out the rows that do not fill a last batch")
    seed: int = Field(default=0, ge=0, le=LONGEST, description="of starting values, order, noise and binarisation")
    optimizer: Annotated[str, choice("adam", "adamw")] = Field(
        default="adamw", description="adam: the paper's, with epsilon beside the uncorrected root; adamw: torch's"
    )
    rate: float = Field(default=1e-3, gt=0, description="learning rate at the start")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="decay of the second moment")
    epsilon: float = Field(default=1e-8, gt=0, description="of the optimizer")
    weight_decay: float = Field(default=0.0, ge=0, description="adamw only")
    schedule: Annotated[str, choice("constant", "step", "cosine")] = Field(
        default="cosine", description="of the learning rate"
    )
    warmup_steps: int = Field(default=0, ge=0, le=LONGEST, description="steps in which the rate rises linearly from 0")
    final_rate: float = Field(default=0.01, ge=0, le=1, description="cosine: the last rate, as a fraction of the first")
    decay: float = Field(default=1.0, gt=0, le=1, description="step: factor of the rate ...")
    decay_every: int = Field(
        default=1, ge=1, le=LONGEST, description="step: ... applied at intervals of this many epochs ..."
    )
    decay_after: int = Field(default=0, ge=0, le=LONGEST, description="step: ... after this epoch")
    clip_norm: float = Field(
        default=5.0, ge=0, description="gradients are scaled to at most this global norm; 0 for never"
    )
    clip_value: float = Field(default=0.0, ge=0, description="then each entry is cut to this size; 0 for never")
    ema: float = Field(
        default=0.0, ge=0, lt=1, description="decay of the weights' moving average; 0: the raw weights are the result"
    )
    keep: Annotated[str, choice("last", "best")] = Field(
        default="last",
        description="which weights are the result: the last, or of the epochs that were evaluated the best on "
        "validation rows",
    )
    evaluate_every: int = Field(
        default=10, ge=0, le=LONGEST, description="epochs between bounds on training and validation rows; 0 for never"
    )
    evaluate_rows: int = Field(default=1000, ge=1, le=LARGEST, description="rows of each that are scored then")
    evaluate_samples: int = Field(default=50, ge=1, le=LARGEST, description="K of these bounds")


@plain_dataclass(frozen=True)
class Stage:
    """A part of a training: its optimizer starts anew, its weights are those that the stage before it ended with."""

    name: str = document.MAIN
    objective: Objective = field(default_factory=Objective)
    training: Training = field(default_factory=Training)


@plain_dataclass(frozen=True)
class Recipe:
    """Every setting. `Recipe()` holds the defaults.

    >>> recipe = Recipe.named("mnist-mem-vae", schedule="fast")
    >>> recipe.model.slots, [(stage.name, stage.training.epochs) for stage in recipe.stages]
    (((70, 30),), [('main', 360), ('large-batches', 200)])
    >>> recipe.override(["training.epochs=3"]).epochs
    6
    """

    about: str = ""
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    stages: tuple[Stage, ...] = (Stage(),)

    def __post_init__(self) -> None:
        if problems := contradictions(self):
            raise MemgenError("\n".join(problems))

    @property
    def objective(self) -> Objective:
        """The objective of the last stage."""
        return self.stages[-1].objective

    @property
    def training(self) -> Training:
        """The training of the last stage."""
        return self.stages[-1].training

    @property
    def epochs(self) -> int:
        """The epochs of all stages."""
        return self.epochs_before(len(self.stages))

    def epochs_before(self, stage: int) -> int:
        """The epochs of the stages before this one, counted from 0."""
        return sum(entry.training.epochs for entry in self.stages[:stage])

    def stage(self, index: int) -> Recipe:
        """One stage alone."""
        return replace(self, stages=(self.stages[index],))

    def until(self, name: str | None) -> Recipe:
        """The stages up to this one; None for all."""
        names = [stage.name for stage in self.stages]
        return self if name is None else replace(self, stages=self.stages[: document.position(name, names) + 1])

    @staticmethod
    def from_dict(table: dict[str, Any], where: str = "recipe", schedule: str | None = None) -> Recipe:
        """A recipe from nested dictionaries, with what it `extends` and its `schedule` looked up; every unknown key,
        wrong type and wrong value is reported, one line each."""
        return _validated(document.resolve(table, where, schedule), where)

    @staticmethod
    def from_toml(text: str, where: str = "recipe", schedule: str | None = None) -> Recipe:
        return Recipe.from_dict(document.parse(text, where), where, schedule)

    @staticmethod
    def named(name: str, schedule: str | None = None) -> Recipe:
        """A shipped recipe, by its own schedule or another one."""
        return Recipe.from_dict(document.shipped(name), name, schedule)

    @staticmethod
    def read(name_or_file: str, schedule: str | None = None) -> Recipe:
        """A shipped recipe by its name, or a TOML file by its path."""
        path = Path(name_or_file)
        if path.suffix != ".toml" and not path.is_file():
            return Recipe.named(name_or_file, schedule)
        return Recipe.from_toml(document.read_text(path), str(path), schedule)

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionaries as in a TOML file: the settings that are equal in all stages, then a table per stage."""
        return document.compact(document.plain(self))

    def to_toml(self) -> str:
        return document.written(self.to_dict())

    def override(self, settings: str | Iterable[str]) -> Recipe:
        """The recipe with some settings changed, given as one or several "section.key=value", values as in TOML.
        training.KEY and objective.KEY are of every stage, stage.NAME.KEY of one."""
        settings = [settings] if isinstance(settings, str) else list(settings)
        where = "--set " + " ".join(text[:80] for text in settings) if settings else "recipe"
        return _validated(document.overridden(document.plain(self), settings), where)

    def differences(self, other: Recipe) -> list[str]:
        """The settings in which two recipes differ, as "section.key was mine, is theirs"; `about` does not count."""
        return document.differences(document.plain(self), document.plain(other))


SECTIONS: dict[str, type] = {"data": Data, "model": Model, "objective": Objective, "training": Training}


def recipe_names() -> list[str]:
    """The shipped recipes."""
    return document.names()


def _validated(table: dict[str, Any], where: str) -> Recipe:
    """The recipe of a resolved table, in which every stage has its own objective and training."""
    problems: list[str] = []
    if table["model"].get("encoder") or table["model"].get("decoder"):
        table["model"].setdefault("hidden", [])
    data = made(Data, table["data"], "data", problems)
    model = made(Model, table["model"], "model", problems)
    stages = []
    for stage in table["stages"]:
        place = "" if len(table["stages"]) == 1 else f"stage {stage['name']}: "
        objective = made(Objective, stage["objective"], f"{place}objective", problems)
        training = made(Training, stage["training"], f"{place}training", problems)
        stages.append(Stage(stage["name"], objective, training))
    try:
        recipe = Recipe(table["about"], data, model, tuple(stages))
    except MemgenError as error:
        problems += str(error).splitlines()
    if problems:
        raise MemgenError("\n".join(f"{where}: {problem}" for problem in dict.fromkeys(problems)))
    return recipe
