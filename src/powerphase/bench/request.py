"""A bench as it is requested: grids × models × seeds, and the data sets that this needs.

Missing data sets can be made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from powerphase.clock import GERMANY, Calendar
from powerphase.dataset.manifest import Manifest
from powerphase.dataset.recipe import make_recipe
from powerphase.dataset.store import read_manifest
from powerphase.errors import CaseError, StoreError, TaskError, UnknownName
from powerphase.grid.catalog import PAPER_GRIDS, load_grid
from powerphase.grid.limits import check_limits
from powerphase.models.framework.device import DEVICES, choose_device
from powerphase.registry import bench_models
from powerphase.resolution import PAPER_STEP_S, Duration
from powerphase.synthesis.signals import Signals
from powerphase.synthesis.sources import NAMED_SOURCES, load_signals
from powerphase.task.known import KnownSource, read_known
from powerphase.task.protocol import (
    PAPER_CONTEXT,
    PAPER_HORIZON,
    PAPER_ORIGIN,
    Protocol,
    WindowCount,
)

Progress = Callable[[int, int], None]
"""Called with the number of finished steps, and of all steps."""


@dataclass(frozen=True)
class DataSet:
    """A grid's data set, which may still have to be made."""

    source: str
    """The grid: a name of the catalogue, or a .m file."""
    path: Path
    edition: str
    fingerprint: str
    n_channels: int
    exists: bool
    signals: str | None = None
    """The signals to make it from, if it is missing."""
    step_s: int = PAPER_STEP_S
    """Seconds from one step to the next."""
    calendar: Calendar = GERMANY

    @property
    def grid(self) -> str:
        """The grid's name in rows."""
        return _grid_name(self.source)

    def make(self, on_progress: Progress | None = None) -> None:
        """Make it, or finish it if it was interrupted; nothing to do if it is complete."""
        from powerphase.dataset.generation import generate  # takes seconds to load

        if self.signals is not None:
            edition = None if self.signals in NAMED_SOURCES else self.edition
            generate(
                self.source,
                self.path,
                signals=self.signals,
                edition=edition,
                on_progress=on_progress,
            )


def find_data_sets(
    grids: Sequence[str], folder: Path, signals: str | None = None, edition: str | None = None
) -> list[DataSet]:
    """The data sets `folder/GRID`, all of one edition; missing ones can be made.

    Without `signals` and `edition`, they have the edition of the existing ones, or else are
    synthetic.
    """
    sources = _distinct(grids)
    existing = {grid: _find_existing(grid, folder) for grid in sources}
    complete = [data for data in existing.values() if data is not None]
    if edition is None and signals is not None:
        edition = _load_signals(signals, None).edition
    if edition is None:
        edition = min((data.edition for data in complete), default="synthetic")
    for data in complete:
        if data.edition != edition:
            raise StoreError(
                f"{data.path}: has edition {data.edition}, but {edition} is requested; give "
                f"--edition {data.edition}, or keep each edition in a folder of its own"
            )
    return [
        data or _plan_missing(grid, folder, signals, edition) for grid, data in existing.items()
    ]


def _distinct(grids: Sequence[str]) -> list[str]:
    """Each grid once; raises if two have one name, since their rows could not be distinguished."""
    by_name: dict[str, str] = {}
    for grid in grids:
        name = _grid_name(grid)
        first = by_name.setdefault(name, grid)
        if Path(first).resolve() != Path(grid).resolve():
            raise CaseError(
                f"{first} and {grid} are both called {name}, so their data sets and rows could not "
                "be distinguished; rename one of them"
            )
    return list(by_name.values())


def _grid_name(grid: str) -> str:
    return Path(grid).stem if grid.endswith(".m") else grid


def _find_existing(grid: str, folder: Path) -> DataSet | None:
    """The data set, if it is complete; raises if the grid is unknown."""
    path = folder / _grid_name(grid)
    manifest = read_manifest(path) if path.is_dir() else None
    if manifest is None or not manifest.complete:
        load_grid(grid)
        return None
    if manifest.grid != path.name:
        raise StoreError(
            f"{path}: holds the grid {manifest.grid}; rename the folder to {manifest.grid}"
        )
    if grid.endswith(".m"):  # only files change, and the catalogue's largest takes a second to read
        _check_unchanged(grid, path, manifest)
    n_channels = 4 * manifest.n_buses
    return DataSet(
        grid,
        path,
        manifest.edition,
        manifest.fingerprint,
        n_channels,
        exists=True,
        step_s=manifest.step_s,
        calendar=manifest.calendar,
    )


def _check_unchanged(file: str, path: Path, manifest: Manifest) -> None:
    """Raise if the data set was made from another case than the file holds now."""
    if load_grid(file).sha256 != manifest.recipe["grid_sha256"]:
        raise StoreError(
            f"{path}: was made from another case than {file} holds now; remove the data set to "
            f"make it again, rename the file, or give the grid as {manifest.grid} to use the "
            "data set as it is"
        )


def _plan_missing(grid: str, folder: Path, signals: str | None, edition: str) -> DataSet:
    """The data set that is to be made."""
    source = signals or (edition if edition in NAMED_SOURCES else None)
    path = folder / _grid_name(grid)
    if source is None:
        raise StoreError(
            f"{path}: no complete data set, and edition {edition} does not imply the signals to "
            "make one from; give --signals"
        )
    network = load_grid(grid)
    driving = _load_signals(source, None if source in NAMED_SOURCES else edition)
    if signals is not None and driving.edition != edition:
        raise StoreError(
            f"{path}: edition {edition} is requested, but --signals {source} give edition "
            f"{driving.edition}; leave one of the two options out"
        )
    recipe = make_recipe(network, driving)
    n_channels = 4 * network.n_buses
    return DataSet(
        grid, path, driving.edition, recipe.fingerprint, n_channels, exists=False, signals=source
    )


@cache
def _load_signals(source: str, edition: str | None) -> Signals:
    return load_signals(source, edition)


ENGINES = ("local", "ray")


@dataclass(frozen=True)
class BenchRequest:
    """Which rows to make, and how; `powerphase bench --help` explains each option."""

    grids: Sequence[str] = PAPER_GRIDS
    models: Sequence[str] = field(default_factory=bench_models)
    seeds: Sequence[int] = (22, 42, 3142)
    data: Path = Path("data")
    signals: str | None = None
    edition: str | None = None
    out: Path = Path("results")
    runs: Path = Path("runs")
    context: Duration = PAPER_CONTEXT
    horizon: Duration = PAPER_HORIZON
    windows: WindowCount = 10
    origin: str = PAPER_ORIGIN
    country: str | None = None
    zone: str | None = None
    known: str | None = None
    limits: str = "normal"
    rating: str = "a"
    device: str = "auto"
    epochs: int | None = None
    batch_size: int | None = None
    seconds: float | None = None
    """The time that a training may take."""
    limit: float | None = None
    """The seconds after which a cell is stopped."""
    workers: int | None = None
    engine: str = "local"

    def __post_init__(self) -> None:
        for kind, name, known in (
            ("engine", self.engine, ENGINES),
            ("device", self.device, DEVICES),
        ):
            if name not in known:
                raise UnknownName.among(kind, name, known)
        for option, value in (("--seconds", self.seconds), ("--limit", self.limit)):
            if value is not None and not value > 0:  # rejects NaN too
                raise TaskError(f"{option} must be above 0, got {value:g}")
        if self.workers is not None and self.workers < 1:
            raise TaskError(f"--workers must be at least 1, got {self.workers}")
        check_limits(self.limits, self.rating)
        if not self.seeds:
            raise TaskError("--seeds is empty; give whole numbers such as 22,42,3142")

    def protocol(self, data: DataSet) -> Protocol:
        """The task by which forecasts of a data set are scored."""
        return Protocol.of(
            data.step_s,
            context=self.context,
            horizon=self.horizon,
            windows=self.windows,
            origin=self.origin,
            limits=self.limits,
            rating=self.rating,
            country=self.country,
            zone=self.zone,
            calendar=data.calendar,
            known=self._known_source,
        )

    @property
    def known_file(self) -> str | None:
        """The absolute path of the forecasts that models are given, if they are in a file."""
        source = self._known_source
        is_file = source is not None and source.kind == "file"
        return str(Path(str(self.known)).resolve()) if is_file else None

    @cached_property
    def _known_source(self) -> KnownSource | None:
        return read_known(self.known)

    @property
    def training(self) -> dict[str, int | None]:
        """Epochs and batch size of all networks, where they replace those of their configs."""
        return {"epochs": self.epochs, "batch_size": self.batch_size}

    @property
    def is_budgeted(self) -> bool:
        """Whether trainings may be cut to fit into `seconds`, so that their rows are `short`."""
        return self.seconds is not None

    @property
    def on_gpu(self) -> bool | None:
        """Whether cells run on GPUs; None if only the Ray cluster knows whether it has any."""
        if self.device != "auto":
            return self.device == "cuda"
        return None if self.engine == "ray" else choose_device("auto").type == "cuda"
