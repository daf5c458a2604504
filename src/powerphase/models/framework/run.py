"""A training on disk.

    RUN/model.json            which model for which grid and data; at the end, how it went
    RUN/weights.safetensors   what was fitted; of a network, the best weights so far, on the
                              validation windows
    RUN/log.jsonl             one line per epoch: losses, gradient, learning rate, validation
    RUN/resume.safetensors    all that is needed to go on from an epoch; removed at the end

Each file is there whole or not at all, and none can execute anything when it is read.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

from torch import Tensor

from powerphase.errors import CheckpointError, TrainingError
from powerphase.files import disk_errors, flush, hold_lock, replace_file
from powerphase.models.framework.checkpoint import read_tensors, write_tensors
from powerphase.scenarios import Layout

FORMAT = 1
HEADER, WEIGHTS, RESUME, LOG = (
    "model.json",
    "weights.safetensors",
    "resume.safetensors",
    "log.jsonl",
)


@dataclass(frozen=True)
class Domain:
    """The grid, scales and windows that a network is made for; no other can use its weights."""

    grid: str
    n_buses: int
    buses: str
    """A digest of the bus numbers in their order."""
    p_scale_mw: float
    q_scale_mvar: float
    context: int
    horizon: int

    @classmethod
    def of(cls, layout: Layout, context: int, horizon: int) -> "Domain":
        """The place of these channels and windows."""
        numbers = ",".join(str(number) for number in layout.bus_id)
        return cls(
            grid=layout.grid,
            n_buses=layout.n_buses,
            buses=hashlib.sha256(numbers.encode()).hexdigest()[:16],
            p_scale_mw=layout.p_scale_mw,
            q_scale_mvar=layout.q_scale_mvar,
            context=context,
            horizon=horizon,
        )

    def check(self, asked: "Domain", source: str) -> None:
        """Refuse to be used in another place."""
        wrong = [f.name for f in fields(self) if getattr(self, f.name) != getattr(asked, f.name)]
        if wrong:
            own, other = (
                ", ".join(f"{name} {getattr(place, name)}" for name in wrong)
                for place in (self, asked)
            )
            raise CheckpointError(
                f"{source} was trained for {own} and is asked for {other}; a model belongs to "
                "the data set it was trained on, so train one for this"
            )


@dataclass(frozen=True)
class Header:
    """What model.json says."""

    model: str
    config: dict[str, Any]
    seed: int
    domain: Domain
    data: dict[str, Any] = field(default_factory=dict)
    """Which data set and task, in the words of whoever trains."""
    version: str = field(default_factory=lambda: version("powerphase"))
    outcome: dict[str, Any] | None = None
    """How the training went; None while it goes on."""
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        """The content of model.json, where the domain is called `place`."""
        return {"place" if key == "domain" else key: value for key, value in asdict(self).items()}

    @property
    def identity(self) -> dict[str, Any]:
        """What two trainings must share to be the same."""
        return _identity(json.loads(json.dumps(self.to_json())))


class RunFolder:
    """The folder of a training, which keeps what the training must not lose."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.header = path, header
        self._continues_log = False

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """The training that is there, finished or not."""
        place = Path(path)
        return cls(place, _read_header(place / HEADER))

    @contextmanager
    def begun(self, writes: bool = True) -> Iterator[None]:
        """Begin the training, or go on with the same one; nobody else can meanwhile."""
        if not writes:
            self._follow()
            yield
            return
        self._check_contents()
        with disk_errors(self.path, CheckpointError):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock = hold_lock(self.path / ".lock")
            except BlockingIOError as error:
                raise CheckpointError(
                    f"{self.path}: another process is training here; wait for it, or choose "
                    "another folder"
                ) from error
        with lock:
            self._begin()
            yield

    def _follow(self) -> None:
        """See whether the training is finished, as the process that writes will."""
        if is_run(self.path):
            found = _read_header(self.path / HEADER)
            if found.outcome is not None and found.identity == self.header.identity:
                self.header = found

    def _check_contents(self) -> None:
        """Refuse to train where something else is kept, before anything is touched."""
        if not self.path.is_dir() or (self.path / HEADER).exists():
            return
        if any(file.suffix != ".partial" and file.name != ".lock" for file in self.path.iterdir()):
            raise CheckpointError(f"{self.path}: holds something else; choose another place")

    def _begin(self) -> None:
        """Take up what is here. A training that has kept nothing yet is not in the way."""
        if not any((self.path / name).exists() for name in (WEIGHTS, RESUME)):
            self._write_header()
            return
        found = _read_header(self.path / HEADER)
        ours, theirs = self.header.identity, found.identity
        wrong = [name for name in ours if ours[name] != theirs[name]]
        if wrong:
            raise CheckpointError(
                f"{self.path}: holds a training of {found.model}, seed {found.seed}, that "
                f"differs in {' and '.join(wrong)}; remove it or choose another place"
            )
        self._continue(found)

    def _continue(self, found: Header) -> None:
        """Go on with a training; one that is not finished may be given another number of epochs."""
        if found.outcome is None:
            self._check_epochs()
            self.header = replace(found, config=self.header.config)
            self._write_header()
        elif found.config != json.loads(json.dumps(self.header.config)):
            raise CheckpointError(
                f"{self.path}: holds a training that is finished, and what it would need to go on "
                "is gone; choose another place"
            )
        else:
            self.header = found
            (self.path / RESUME).unlink(missing_ok=True)
        self.best()  # what is damaged should be found before hours are spent
        self.curve()

    def _check_epochs(self) -> None:
        """Refuse to stop before where the training is: its best weights may be of a later epoch."""
        saved, asked = self.resume(), self.header.config.get("training", {}).get("epochs", inf)
        reached = 0 if saved is None else max(saved[1]["epoch"], self.best()[1]["epoch"])
        if reached > asked:
            raise TrainingError(
                f"{self.path}: is at epoch {reached} already; give it that many or more"
            )

    @property
    def weights_file(self) -> Path:
        """Where the best weights are."""
        return self.path / WEIGHTS

    def resume(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What was last saved, if anything."""
        file = self.path / RESUME
        return self._read(file) if file.exists() else None

    def keep_best(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write the weights, with what they are for, so that they cannot be taken for others."""
        write_tensors(self.weights_file, weights, {**facts, **self.header.identity})

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write all that is needed to go on."""
        write_tensors(self.path / RESUME, tensors, {**facts, **self.header.identity})

    def log(self, line: Mapping[str, Any]) -> None:
        """Add one epoch; what a killed process wrote of it and later ones is dropped first."""
        file = self.path / LOG
        with disk_errors(file, CheckpointError):
            if not self._continues_log:
                kept = [old for old in self.curve() if old["epoch"] < line["epoch"]]
                replace_file(file, "".join(_as_line(old) for old in kept).encode())
                self._continues_log = True
            with file.open("a") as handle:
                handle.write(_as_line(line))
            flush(file)

    def curve(self) -> list[dict[str, Any]]:
        """All lines of the log that are whole."""
        file = self.path / LOG
        if not file.exists():
            return []
        try:
            lines = file.read_text().split("\n")[:-1]  # what follows the last line end was cut
            found = [json.loads(line) for line in lines]
            if not all(isinstance(line, dict) and "epoch" in line for line in found):
                raise ValueError("a line tells of no epoch")
            return found
        except ValueError as error:
            raise CheckpointError(f"{file}: is no log ({error}); remove the log") from error

    def best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The best weights, and when they were found."""
        if not self.weights_file.exists():
            raise CheckpointError(f"{self.path}: no epoch is finished yet; train on")
        return self._read(self.weights_file)

    def _read(self, file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors of this training, and of no other."""
        tensors, facts = read_tensors(file)
        theirs = _identity(facts)
        wrong = [name for name, own in self.header.identity.items() if theirs[name] != own]
        if wrong:
            raise CheckpointError(
                f"{file}: belongs to another training, by its {' and '.join(wrong)}; "
                "restore the folder as it was written"
            )
        return tensors, facts

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Say how it went; nothing is left to resume."""
        self.header = replace(self.header, outcome=dict(outcome))
        self._write_header()
        (self.path / RESUME).unlink(missing_ok=True)

    def _write_header(self) -> None:
        with disk_errors(self.path, CheckpointError):
            text = json.dumps(self.header.to_json(), indent=1, ensure_ascii=False)
            replace_file(self.path / HEADER, f"{text}\n".encode())


def is_run(path: str | Path) -> bool:
    """Whether the folder of a training is there."""
    return (Path(path) / HEADER).is_file()


def _identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """All by which a training differs from another, but for the number of its epochs."""
    found = {name: facts.get(name) for name in ("model", "config", "seed", "place", "data")}
    if isinstance(found["config"], Mapping) and "training" in found["config"]:
        training = {k: v for k, v in found["config"]["training"].items() if k != "epochs"}
        found["config"] = {**found["config"], "training": training}
    return found


def _as_line(line: Mapping[str, Any]) -> str:
    return json.dumps(line) + "\n"


def _read_header(file: Path) -> Header:
    if not file.is_file():
        raise CheckpointError(f"{file.parent}: is no training; it has no {HEADER}")
    try:
        found = json.loads(file.read_text())
        if not all(isinstance(found[name], dict) for name in ("config", "place", "data")):
            raise ValueError("config, place and data must be tables")
        if found["format"] != FORMAT:
            raise CheckpointError(
                f"{file}: is of format {found['format']!r} and this version reads {FORMAT}; use "
                f"powerphase {found.get('version')}"
            )
        return Header(domain=Domain(**found.pop("place")), **found)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: is no description of a training ({error})") from error
