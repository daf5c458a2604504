"""A bench as it is requested: grids × models × seeds, and how to make their rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from powerphase.bench.data import DataSet
from powerphase.errors import TaskError, UnknownName
from powerphase.grid.catalog import PAPER_GRIDS
from powerphase.grid.limits import check_limits
from powerphase.models.framework.device import DEVICES, choose_device
from powerphase.registry import bench_models
from powerphase.resolution import Duration
from powerphase.task.protocol import (
    PAPER_CONTEXT,
    PAPER_HORIZON,
    PAPER_ORIGIN,
    Protocol,
    WindowCount,
)

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
        )

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
