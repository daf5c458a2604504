"""The data sets of a bench: where each lies, which edition it is of, and making what is missing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from powerphase.dataset.layout import Manifest
from powerphase.dataset.recipe import make_recipe
from powerphase.dataset.store import read_manifest
from powerphase.errors import CaseError, StoreError
from powerphase.grid.catalog import load_grid
from powerphase.synthesis.signals import Signals
from powerphase.synthesis.sources import NAMED_SOURCES, load_signals

Progress = Callable[[int, int], None]
"""Called with the steps that are done and the steps of the whole record."""


@dataclass(frozen=True)
class DataSet:
    """A grid's data set, which may have to be made yet."""

    given: str
    """A name of the catalogue, or a .m file."""
    path: Path
    edition: str
    fingerprint: str
    n_channels: int
    is_there: bool
    signals: str | None = None
    """From which it is made, if it is not there."""

    @property
    def grid(self) -> str:
        """The grid's name in rows."""
        return _name(self.given)

    def make(self, on_progress: Progress | None = None) -> None:
        """Make it, or finish what was begun, unless it is there."""
        from powerphase.dataset.generation import generate  # which takes seconds to load

        if self.signals is not None:
            name = None if self.signals in NAMED_SOURCES else self.edition
            options = {"signals": self.signals, "edition": name}
            generate(self.given, self.path, **options, on_progress=on_progress)  # type: ignore[arg-type]


def data_sets(
    grids: Sequence[str], folder: Path, signals: str | None = None, edition: str | None = None
) -> list[DataSet]:
    """The data sets `folder/GRID`, all of one edition; those that are missing can be made.

    Without `signals` and `edition` they are of whatever edition is there, or else synthetic.
    """
    found = [_existing(grid, folder) for grid in _distinct(grids)]
    there = {one.edition for one in found if isinstance(one, DataSet)}
    wanted = edition or (None if signals is None else _signals(signals, None).edition)
    if wanted is None:
        wanted = min(there, default="synthetic")
    for one in found:
        if isinstance(one, DataSet) and one.edition != wanted:
            raise StoreError(
                f"{one.path}: is of edition {one.edition}, and {wanted} is asked for; give "
                f"--edition {one.edition}, or keep each edition in a folder of its own"
            )
    return [
        one if isinstance(one, DataSet) else _missing(one, folder, signals, wanted) for one in found
    ]


def _distinct(grids: Sequence[str]) -> list[str]:
    """Each grid once; refuses two of one name, since the rows of one would pass for the other's."""
    first: dict[str, str] = {}
    for grid in grids:
        one = first.setdefault(_name(grid), grid)
        if Path(one).resolve() != Path(grid).resolve():
            raise CaseError(
                f"{one} and {grid} are both called {_name(grid)}, by which data sets and rows are "
                "found; rename one of them"
            )
    return list(first.values())


def _name(grid: str) -> str:
    return Path(grid).stem if grid.endswith(".m") else grid


def _existing(grid: str, folder: Path) -> DataSet | str:
    """The data set, if it is there and finished; or its name, if the grid is known."""
    place = folder / _name(grid)
    manifest = None if not place.is_dir() else read_manifest(place)
    if manifest is None or not manifest.complete:
        load_grid(grid)
        return grid
    if manifest.grid != place.name:
        raise StoreError(f"{place}: holds the grid {manifest.grid}; give it a folder of its name")
    if grid.endswith(".m"):  # which is edited; to read the catalogue's largest takes a second
        _check_unchanged(grid, place, manifest)
    size = 4 * manifest.n_buses
    return DataSet(grid, place, manifest.edition, manifest.fingerprint, size, True)


def _check_unchanged(file: str, place: Path, manifest: Manifest) -> None:
    """Refuse a data set of another case than the file holds now: it would pass for this one's."""
    if load_grid(file).sha256 != manifest.recipe["grid_sha256"]:
        raise StoreError(
            f"{place}: was made from another case than {file} holds now; remove the data set to "
            f"have it made anew, rename the file, or name the grid {manifest.grid} to take the "
            "data set as it is"
        )


def _missing(grid: str, folder: Path, signals: str | None, edition: str) -> DataSet:
    """The data set that is to be made."""
    source = signals or (edition if edition in NAMED_SOURCES else None)
    place = folder / _name(grid)
    if source is None:
        raise StoreError(
            f"{place}: no finished data set here, and edition {edition} does not say from which "
            "signals to make one; give --signals"
        )
    network, driving = (
        load_grid(grid),
        _signals(source, None if source in NAMED_SOURCES else edition),
    )
    if signals is not None and driving.edition != edition:
        raise StoreError(
            f"{place}: is to be of edition {edition}, and --signals {source} make one of "
            f"{driving.edition}; leave one of the two options out"
        )
    recipe = make_recipe(network, driving)
    size = 4 * network.n_buses
    return DataSet(grid, place, driving.edition, recipe.fingerprint, size, False, source)


@cache
def _signals(source: str, edition: str | None) -> Signals:
    return load_signals(source, edition)
