"""The commands `ccagent store metrics`."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

import click

from ccagent.config.command_options import HelpfulGroup
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    from ccagent.stores.metrics.settings import StoreSettings

_DEFAULT = "/etc/ccagent/store.toml"
_PAGES = "127.0.0.1:8084"
_OF_STORE = ("numpy", "orjson", "httptools", "cryptography")
_OF_PAGES = ("starlette", "jinja2", "uvicorn")


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("-v", "--verbose", count=True, help="Log information; -vv: log everything."),
        click.option(
            "--frequency",
            metavar="DURATION",
            help="Time step of metrics that are not in the configuration.",
        ),
        click.option(
            "--web",
            metavar="[ADDRESS:PORT]",
            is_flag=False,
            flag_value=_PAGES,
            help=f"Serve web pages, by default at {_PAGES}.",
        ),
        click.option("--listen", metavar="ADDRESS:PORT", help="Address and port of HTTP."),
        click.option("--data", metavar="DIR", help="Directory of the log."),
        click.option(
            "--config",
            metavar="FILE",
            help=f"{_DEFAULT} if it exists; also config.json of ClusterCockpit's store.",
        ),
    ):
        function = option(function)
    return function


@click.group(cls=HelpfulGroup, invoke_without_command=True)
@_with_options
@click.pass_context
def metrics(ctx: click.Context, /, **options: Any) -> None:
    """Run the metric store, which has the interface of ClusterCockpit's metric store."""
    if ctx.invoked_subcommand is not None:
        return
    gc.disable()  # until `shorten_collections`: a start makes millions of objects, and all stay
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the store multiplies no matrices
    need_store_extra(with_pages=bool(options["web"]))
    settings = _checked(**options)
    if settings.web.listen:
        need_store_extra(with_pages=True)
    from ccagent.stores.metrics.server import run_store

    try:
        run_store(settings)
    except OSError as error:
        from ccagent.net.error_texts import explain_listening

        raise ConfigurationError(f"the store can't start: {explain_listening(error)}") from error


@metrics.command()
@_with_options
def check(**options: Any) -> None:
    """Check the configuration; exit status 2 if it can't be used."""
    need_store_extra()
    settings = _checked(**options)
    click.echo(f"metrics: {', '.join(sorted(settings.metrics))}")
    click.echo(f"listens on {settings.listen}, keeps {settings.retention} in memory")


@metrics.command()
@_with_options
def status(**options: Any) -> None:
    """Show the metrics of the running store; exit status 1 if no store answers."""
    settings = _settings(**options)
    from ccagent.stores.metrics.checking import read_status

    text, is_running = read_status(settings)
    click.echo(text, nl=False)
    if not is_running:
        sys.exit(1)


@metrics.command()
@_with_options
@click.option("--format", "form", type=click.Choice(["line", "json", "binary"]), default="line",
              help="Line protocol, or checkpoints for ClusterCockpit's store.")  # fmt: skip
@click.argument("target", type=click.Path())
def export(form: Literal["line", "json", "binary"], target: str, **options: Any) -> None:
    """Write the values of a stopped store to the file or directory TARGET."""
    need_store_extra()
    settings = _settings(**options)
    from ccagent.stores.metrics.exporting import export_values

    click.echo(f"exported: {export_values(settings, form, target)} values")


def _checked(**options: Any) -> StoreSettings:
    """Return checked settings. Raise ConfigurationError if the store can't start with them."""
    settings = _settings(**options)
    from ccagent.stores.metrics.checking import find_problems

    try:
        problems = find_problems(settings)
    except ImportError as error:
        raise ConfigurationError(f"a library of the store can't be loaded: {error}") from error
    if problems:
        raise ConfigurationError(*problems)
    return settings


def _settings(
    *,
    config: str | None,
    data: str | None,
    listen: str | None,
    frequency: str | None,
    web: str | None,
    verbose: int,
) -> StoreSettings:
    from ccagent import log
    from ccagent.config.duration import Duration
    from ccagent.stores.metrics.checking import read_settings
    from ccagent.stores.metrics.line_keys import WILDCARD
    from ccagent.stores.metrics.settings import StoredMetricSettings

    log.configure(verbose)
    context = click.get_current_context()
    above = context.parent.params if context.parent is not None else {}
    config, data = config or above.get("config"), data or above.get("data")
    listen, frequency = listen or above.get("listen"), frequency or above.get("frequency")
    web = web or above.get("web")
    if config is None and data is None and os.path.exists(_DEFAULT):
        config = _DEFAULT
    changes: dict[str, Any] = {}
    if data:
        changes["data"] = data
    if listen:
        changes["listen"] = listen
    if web:
        changes["web"] = {"listen": web}
    if frequency:
        try:
            every = StoredMetricSettings(frequency=Duration(frequency), aggregation="avg")
        except ValueError as error:
            raise ConfigurationError(f"--frequency: {error}") from error
        changes["metrics"] = {WILDCARD: every}
    return read_settings(config, changes)


def need_store_extra(*, with_pages: bool = False) -> None:
    """Raise ConfigurationError if the extra `metrics-store` or `web`, or the pages, are missing."""
    from importlib.util import find_spec

    from ccagent.machine.interpreter import install_command

    if with_pages and not find_spec("ccagent.views.web"):
        raise ConfigurationError("the pages are in the package ccagent-web")
    wanted = _OF_STORE + (_OF_PAGES if with_pages else ())
    missing = [name for name in wanted if not find_spec(name)]
    if missing:
        what = "the store with pages needs" if with_pages else "the store needs"
        raise ConfigurationError(
            f"{what} {', '.join(missing)}: {install_command(' '.join(missing))}"
        )
