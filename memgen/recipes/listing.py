"""The shipped recipes and schedules, in the groups in which people look for them."""

from __future__ import annotations

from typing import NamedTuple

from memgen.data import DATASETS
from memgen.recipes import document
from memgen.recipes.settings import Recipe, recipe_names


class Group(NamedTuple):
    """Recipes of one data set, or the schedules."""

    title: str
    entries: dict[str, str]
    """Name -> what it is, in a line."""


def recipe_groups() -> list[Group]:
    """
    >>> [group.title for group in recipe_groups()]
    ['digits', 'mnist', 'ocr_letters', 'frey_faces', 'schedules']
    """
    recipes = {name: Recipe.named(name) for name in recipe_names()}
    groups = [
        Group(data, {name: recipe.about for name, recipe in recipes.items() if recipe.data.name == data})
        for data in DATASETS
    ]
    schedules = {name: str(document.schedule_of(name).get("about", "")) for name in document.schedule_names()}
    return [*(group for group in groups if group.entries), Group("schedules", schedules)]
