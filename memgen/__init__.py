"""memgen: deep generative models with external memory.

>>> import memgen
>>> recipe = memgen.Recipe.named("digits-mem-vae").override(["training.epochs=2"])
>>> data = memgen.dataset("digits")
>>> model = memgen.build(recipe)
>>> for epoch in memgen.fit(model, data, recipe):
...     print(epoch.epoch, epoch.bound < 0)
1 True
2 True
>>> memgen.log_likelihood(model, data.fixed("test", 50), samples=20).log_p.shape
torch.Size([50])
>>> memgen.sample(model, 16).shape
torch.Size([16, 64])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.6.0"

if TYPE_CHECKING:
    from memgen.core.batch import Batch as Batch
    from memgen.core.model import DGM as DGM
    from memgen.core.model import Conditional as Conditional
    from memgen.core.model import GenerativeModel as GenerativeModel
    from memgen.core.model import count_parameters as count_parameters
    from memgen.core.noise import binarise as binarise
    from memgen.data import DATASETS as DATASETS
    from memgen.data import Dataset as Dataset
    from memgen.data import dataset as dataset
    from memgen.errors import MemgenError as MemgenError
    from memgen.estimators.table import MemDensity as MemDensity
    from memgen.estimators.table import MemImputer as MemImputer
    from memgen.recipes.build import build as build
    from memgen.recipes.settings import Recipe as Recipe
    from memgen.recipes.settings import recipe_names as recipe_names
    from memgen.runs.modelfile import save as save
    from memgen.runs.run import load as load
    from memgen.tasks.density import log_likelihood as log_likelihood
    from memgen.tasks.features import features as features
    from memgen.tasks.imputation import impute as impute
    from memgen.tasks.inspection import inspect as inspect
    from memgen.tasks.patterns import missing_entries as missing_entries
    from memgen.tasks.sampling import interpolate as interpolate
    from memgen.tasks.sampling import reconstruct as reconstruct
    from memgen.tasks.sampling import sample as sample
    from memgen.training.fit import fit as fit
    from memgen.training.statistics import collect_statistics as collect_statistics

_HOMES = {
    "core.batch": ("Batch",),
    "core.model": ("DGM", "Conditional", "GenerativeModel", "count_parameters"),
    "core.noise": ("binarise",),
    "data": ("DATASETS", "Dataset", "dataset"),
    "errors": ("MemgenError",),
    "estimators": ("MemDensity", "MemImputer"),
    "recipes.build": ("build",),
    "recipes.settings": ("Recipe", "recipe_names"),
    "runs.modelfile": ("save",),
    "runs.run": ("load",),
    "tasks.density": ("log_likelihood",),
    "tasks.features": ("features",),
    "tasks.imputation": ("impute",),
    "tasks.inspection": ("inspect",),
    "tasks.patterns": ("missing_entries",),
    "tasks.sampling": ("interpolate", "reconstruct", "sample"),
    "training.fit": ("fit",),
    "training.statistics": ("collect_statistics",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: `memgen --help` should not wait for torch."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'memgen' has no attribute {name!r}")
    return getattr(import_module(f"memgen.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
