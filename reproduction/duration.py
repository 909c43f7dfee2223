"""A length of time on the command line."""

from __future__ import annotations

from typing import Any

import click


class Duration(click.ParamType[float]):
    """Seconds, from 90, 90s, 150m or 2.5h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        units = {"s": 1, "m": 60, "h": 3600}
        number, unit = (value[:-1], units[value[-1]]) if value[-1:] in units else (value, 1)
        try:
            seconds = float(number) * unit
        except ValueError:
            self.fail(f"{value!r} is no time; write it as 150m, 2.5h or 90s", param, ctx)
        if not 0 < seconds < 1e8:
            self.fail(f"{value!r} is no time to work in; write it as 150m, 2.5h or 90s", param, ctx)
        return seconds
