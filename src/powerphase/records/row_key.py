"""What identifies a row, and every name and path that follows from it."""

from dataclasses import dataclass
from pathlib import PurePosixPath

FAILURE_SUFFIX = ".failed.json"


@dataclass(frozen=True)
class RowKey:
    """One forecaster with one seed, on one data set, by one task."""

    task: str
    edition: str
    grid: str
    model: str
    variant: str | None
    seed: int

    @property
    def name(self) -> str:
        """The model, and its variant if it has one: `last-week`, `powerforge+wta`."""
        return full_name(self.model, self.variant)

    @property
    def stem(self) -> str:
        """The name and the seed: `powerforge+wta-42`."""
        return f"{self.name}-{self.seed}"

    @property
    def path(self) -> PurePosixPath:
        """The row's file, relative to the tree of results."""
        return self._folder / f"{self.stem}.json"

    @property
    def failure_path(self) -> PurePosixPath:
        """The file that records a failure, relative to the tree of results."""
        return self._folder / f"{self.stem}{FAILURE_SUFFIX}"

    @property
    def run_path(self) -> PurePosixPath:
        """The folder of the training, relative to that of all trainings.

        A training does not depend on the task, which only chooses the test windows.
        """
        return PurePosixPath(self.edition, self.grid, self.stem)

    @property
    def _folder(self) -> PurePosixPath:
        return PurePosixPath(self.task, self.edition, self.grid)


def full_name(model: str, variant: str | None) -> str:
    """The name of a model with its variant, if it has one."""
    return f"{model}+{variant}" if variant else model


def split_name(name: str) -> tuple[str, str | None]:
    """The model and the variant in a full name."""
    model, _, variant = name.partition("+")
    return model, variant or None
