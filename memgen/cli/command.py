"""Parts of all commands: --json, examples in the help, errors of one line with an exit code, imports on demand."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from memgen.errors import FailedError, MemgenError, printable, unknown

FAILED, BAD_INPUT, INTERNAL, INTERRUPTED = 1, 2, 70, 130
"""Exit codes; 70 is what sysexits.h calls an internal software error."""

WIDTH = 110
JSON = "memgen.json"
"""The key in a click context's meta that tells whether --json was given."""


class Advice(click.UsageError):
    """A wrong command line whose message already says what to do."""


def examples(*lines: str) -> str:
    """The epilog of a command, which click does not wrap."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def say(text: str = "") -> None:
    """Print a line for the user: on stdout, or with --json on stderr."""
    context = click.get_current_context(silent=True)
    click.echo(printable(text), err=bool(context and context.meta.get(JSON)))


def count(n: int, what: str) -> str:
    """
    >>> count(1, "epoch"), count(2000, "epoch")
    ('1 epoch', '2,000 epochs')
    """
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def _note_json(context: click.Context, option: click.Parameter, value: bool) -> None:
    context.meta[JSON] = value


class Command(click.Command):
    """A command whose function returns a record that --json prints. `invoke` returns the exit code."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        words = "Print one JSON object on stdout, everything else on stderr."
        option = click.Option(["--json"], is_flag=True, expose_value=False, callback=_note_json, help=words)
        self.params.append(option)
        self.context_settings.setdefault("max_content_width", WIDTH)

    def invoke(self, ctx: click.Context) -> int:
        return exit_code(ctx.command_path, lambda: self._work(ctx))

    def _work(self, ctx: click.Context) -> None:
        from memgen.runs.finite import finite
        from memgen.runs.ranks import only_first_rank_speaks

        with only_first_rank_speaks():
            result = super().invoke(ctx)
            if ctx.meta.get(JSON):
                click.echo(json.dumps(finite(result), allow_nan=False))


class Group(click.Group):
    """A group of commands, which shows its help if no command is given."""

    command_class = Command

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"invoke_without_command": True, **options})
        self.callback = _help_when_bare
        self.context_settings.setdefault("max_content_width", WIDTH)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and args[0] not in (names := self.list_commands(ctx)):
            raise click.UsageError(str(unknown("command", args[0], names)), ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            for name in set(given) & set(self.list_commands(ctx)):
                command = self.get_command(ctx, name)
                if command is not None and error.option_name in option_names(command):
                    raise click.UsageError(f"{error.option_name} comes after the command", ctx) from None
            raise


def _help_when_bare() -> None:
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


class LazyGroup(Group):
    """A group that imports command NAME on use: it is `command` in the module memgen.cli.NAME."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, str]], **options: Any) -> None:
        """`sections`: heading -> name -> the first line of its help, in the order of the help."""
        super().__init__(*args, **options)
        self.sections = sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for commands in self.sections.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"memgen.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl(list(commands.items()), col_max=12)


def option_names(command: click.Command) -> list[str]:
    return [name for option in command.params if isinstance(option, click.Option) for name in option.opts]


def run(command: click.Command, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    warnings.showwarning = _show_warning
    complete = f"_{name.upper().replace('-', '_')}_COMPLETE"
    if instruction := os.environ.get(complete):
        from click.shell_completion import shell_complete

        return shell_complete(command, {}, name, complete, instruction)
    given = sys.argv[1:] if arguments is None else list(arguments)
    return exit_code(name, lambda: _started(command, name, given))


def _started(command: click.Command, name: str, arguments: list[str]) -> int | None:
    with command.make_context(name, arguments) as context:
        code: int | None = command.invoke(context)
    return code


def exit_code(name: str, work: Callable[[], int | None]) -> int:
    """Do the work of a command; what goes wrong becomes one line on stderr and an exit code."""
    try:
        code = work()
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except BrokenPipeError:
        # The reader of our output has gone, as in `memgen recipes | head`; that is not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        from memgen.runs.ranks import may_speak

        code, line = explained(name, error)
        if may_speak():
            print(printable(line), file=sys.stderr)
    return code or 0


def explained(name: str, error: BaseException) -> tuple[int, str]:
    """The exit code of an error, and its message in one line."""
    if isinstance(error, click.UsageError):
        return BAD_INPUT, usage(name, error)
    if isinstance(error, MemgenError):
        return FAILED if isinstance(error, FailedError) else BAD_INPUT, f"{name}: {error}"
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, f"{name}: {str(error) or 'interrupted'}"
    if isinstance(error, OSError | MemoryError):
        return BAD_INPUT, f"{name}: {str(error) or 'out of memory'}"
    summary = (str(error).splitlines() or [""])[0][:200]
    trace = keep_trace(error)
    return (
        INTERNAL,
        f"{name}: an error in memgen itself, {type(error).__name__}: {summary}; the full trace is in {trace}",
    )


def usage(name: str, error: click.UsageError) -> str:
    """A usage error in one line: the command, the error, and the nearest valid option."""
    name = error.ctx.command_path if error.ctx else name
    if isinstance(error, Advice):
        return f"{name}: {error.message}"
    message = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        message = str(unknown("option", error.option_name, option_names(error.ctx.command)))
    message = " ".join(message.split()).removesuffix(".")
    return f"{name}: {message[:1].lower()}{message[1:]} (see {name} --help)"


def keep_trace(error: BaseException) -> Path:
    """Write the trace of an unexpected error into the cache; if that fails, into a temporary folder."""
    text = "".join(traceback.format_exception(error))
    try:
        from memgen.data.cache import cache_folder

        folder = cache_folder() / "traces"
        folder.mkdir(parents=True, exist_ok=True)
        return _written(text, folder)
    except (OSError, ImportError):
        return _written(text, Path(tempfile.gettempdir()))


def _written(text: str, folder: Path) -> Path:
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix="memgen-", suffix=".txt", delete=False) as file:
        file.write(text)
    return Path(file.name)


def _show_warning(message: Warning | str, *details: object, **options: object) -> None:
    print(printable(f"memgen: warning: {message}"), file=sys.stderr)
