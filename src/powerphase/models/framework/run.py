"""A training on disk.

    RUN/model.json            the model, its grid and data; after the training, its outcome
    RUN/weights.safetensors   the fitted tensors; of a network, the weights that were best so far
                              on the validation windows
    RUN/log.jsonl             one line per epoch: losses, gradient, learning rate, validation
    RUN/resume.safetensors    what is needed to continue after an epoch; removed at the end

Files are written whole or not at all, and reading them executes nothing.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from math import inf, isfinite
from pathlib import Path
from typing import Any

from torch import Tensor

from powerphase.errors import CheckpointError, TrainingError
from powerphase.files import (
    disk_errors,
    flush,
    hold_lock,
    parse_json,
    read_regular_file,
    replace_file,
)
from powerphase.models.framework.checkpoint import read_tensors, write_tensors
from powerphase.resolution import PAPER_STEP_S, STEPS_S, steps_per_day
from powerphase.scenarios import Layout, Training
from powerphase.schema import (
    MAX_BUSES,
    MAX_JSON_BYTES,
    MAX_STEPS,
    OptionalKey,
    Rule,
    Schema,
    integer,
    nullable,
    number,
    object_with,
    one_of,
    plain_object,
    problems,
    read_json,
    real,
    text,
)

FORMAT = 1
HEADER, WEIGHTS, RESUME, LOG = (
    "model.json",
    "weights.safetensors",
    "resume.safetensors",
    "log.jsonl",
)


MAX_SCALE = 1e9
"""A million times the largest P or Q of a grid, in MW or MVAr."""

OUTCOME = object_with(
    {
        "steps": nullable(integer(0)),
        "train_s": nullable(number(0.0)),
        "peak_memory_gib": nullable(number(0.0)),
        "hardware": text(),
    }
)
"""What every finished training reports; a model adds its own facts."""

HEADER_SCHEMA: dict[str, Schema] = {
    "model": text(),
    "config": plain_object,
    "seed": integer(0, 2**63),
    "place": {
        "grid": text(),
        "n_buses": integer(1, MAX_BUSES),
        "buses": text(),
        "p_scale_mw": real(0.0, MAX_SCALE),
        "q_scale_mvar": real(0.0, MAX_SCALE),
        "context": integer(1, MAX_STEPS),
        "horizon": integer(1, MAX_STEPS),
        "step_s": OptionalKey(one_of(STEPS_S)),  # without it, 15 minutes
    },
    "data": plain_object,
    "version": text(),
    "outcome": nullable(OUTCOME),
    "format": one_of([FORMAT]),
}

CRITERION = "validation_"
"""The start of the name of the score that a training minimises."""


def _is_log_line(line: Any) -> bool:
    if not isinstance(line, dict) or not all(map(nullable(number()).holds, line.values())):
        return False
    needed = {"epoch": integer(1), "step": integer(1), "learning_rate": number(0.0)}
    needed |= {"seconds": number(0.0)} | {n: number() for n in line if n.startswith(CRITERION)}
    return len(needed) == 5 and all(rule.holds(line.get(name)) for name, rule in needed.items())


LOG_LINE = Rule("an object of numbers with epoch, step, validation and seconds", _is_log_line)


@dataclass(frozen=True)
class Domain:
    """The grid, scales and windows that a network is built for; its weights fit no others."""

    grid: str
    n_buses: int
    buses: str
    """A digest of the bus numbers in their order."""
    p_scale_mw: float
    q_scale_mvar: float
    context: int
    horizon: int
    step_s: int = PAPER_STEP_S
    """Seconds from one step to the next."""

    @property
    def steps_per_day(self) -> int:
        """How many steps a day has."""
        return steps_per_day(self.step_s)

    @classmethod
    def of(cls, layout: Layout, context: int, horizon: int, step_s: int = PAPER_STEP_S) -> "Domain":
        """The domain of these channels and windows."""
        numbers = ",".join(str(number) for number in layout.bus_id)
        return cls(
            grid=layout.grid,
            n_buses=layout.n_buses,
            buses=hashlib.sha256(numbers.encode()).hexdigest()[:16],
            p_scale_mw=layout.p_scale_mw,
            q_scale_mvar=layout.q_scale_mvar,
            context=context,
            horizon=horizon,
            step_s=step_s,
        )

    @classmethod
    def of_training(cls, train: Training) -> "Domain":
        """The domain of a training."""
        windows = train.validation
        return cls.of(train.layout, windows.context_steps, windows.horizon, train.step_s)

    def check(self, other: "Domain", source: str) -> None:
        """Raise if the other domain is not this one."""
        wrong = [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]
        if wrong:
            trained_for, applied_to = (
                ", ".join(f"{name} {getattr(domain, name)}" for name in wrong)
                for domain in (self, other)
            )
            raise CheckpointError(
                f"{source} was trained for {trained_for} and cannot forecast {applied_to}; a model "
                "belongs to the data set it was trained on, so train one for this"
            )


@dataclass(frozen=True)
class Header:
    """The content of model.json."""

    model: str
    config: dict[str, Any]
    seed: int
    domain: Domain
    data: dict[str, Any] = field(default_factory=dict)
    """The data set and the task."""
    version: str = field(default_factory=lambda: version("powerphase"))
    outcome: dict[str, Any] | None = None
    """Facts about the finished training; None before."""
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        """The content of model.json, where the domain is called `place`."""
        facts = {"place" if key == "domain" else key: value for key, value in asdict(self).items()}
        if self.domain.step_s == PAPER_STEP_S:  # which files have never stated
            del facts["place"]["step_s"]
        return facts

    @property
    def identity(self) -> dict[str, Any]:
        """What two trainings have in common if they are the same."""
        return _identity(json.loads(json.dumps(self.to_json())))


class RunFolder:
    """The folder of a training, a `CheckpointStore` on disk."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.header = path, header
        self._continues_log = False

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """The training in the folder, finished or not."""
        folder = Path(path)
        return cls(folder, _read_header(folder / HEADER))

    @contextmanager
    def start(self, writes: bool = True) -> Iterator[None]:
        """Start the training or continue it, with a lock that keeps other processes out."""
        if not writes:
            self._read_outcome()
            yield
            return
        self._check_contents()
        with disk_errors(self.path, CheckpointError):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock = hold_lock(self.path / ".lock")
            except BlockingIOError as error:
                raise CheckpointError(
                    f"{self.path}: another process is training in this folder; wait for it, or "
                    "choose another"
                ) from error
        with lock:
            self._start()
            yield

    def _read_outcome(self) -> None:
        """Read whether the training is finished, as the process that writes does."""
        if is_run(self.path):
            header = _read_header(self.path / HEADER)
            if header.outcome is not None and header.identity == self.header.identity:
                self.header = header

    def _check_contents(self) -> None:
        """Raise if the folder holds something else, before anything is written."""
        if not self.path.is_dir():
            return
        if (self.path / HEADER).exists():
            _read_header(self.path / HEADER)  # it may be somebody else's, or the only one
            return
        ours = {".lock", *(f"{name}.partial" for name in (HEADER, WEIGHTS, RESUME, LOG))}
        if any(file.name not in ours for file in self.path.iterdir()):
            raise CheckpointError(
                f"{self.path}: holds files of something else; choose another folder"
            )

    def _start(self) -> None:
        """Continue the training in the folder; one without weights is replaced."""
        if not any((self.path / name).exists() for name in (WEIGHTS, RESUME)):
            self._write_header()
            return
        stored = _read_header(self.path / HEADER)
        ours, theirs = self.header.identity, stored.identity
        wrong = [name for name in ours if ours[name] != theirs[name]]
        if wrong:
            raise CheckpointError(
                f"{self.path}: holds a training of {stored.model}, seed {stored.seed}, that "
                f"differs in {' and '.join(wrong)}; remove it or choose another folder"
            )
        self._continue(stored)

    def _continue(self, stored: Header) -> None:
        """Continue a training; an unfinished one may get another number of epochs."""
        if stored.outcome is None:
            self._check_epochs()
            self.header = replace(stored, config=self.header.config)
            self._write_header()
        elif stored.config != json.loads(json.dumps(self.header.config)):
            raise CheckpointError(
                f"{self.path}: holds a finished training, whose state to continue from was "
                "removed; choose another folder"
            )
        else:
            self.header = stored
            (self.path / RESUME).unlink(missing_ok=True)
        self.best()  # find damage before hours are spent
        self.curve()

    def _check_epochs(self) -> None:
        """Raise if the config has fewer epochs than are done: the best may be a later one."""
        saved, epochs = self.load_state(), self.header.config.get("training", {}).get("epochs", inf)
        done = 0 if saved is None else max(saved[1]["epoch"], self.best()[1]["epoch"])
        if done > epochs:
            raise TrainingError(f"{self.path}: has {done} epochs already; give that many or more")

    @property
    def weights_file(self) -> Path:
        """The file with the best weights."""
        return self.path / WEIGHTS

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last saved state, if there is one."""
        file = self.path / RESUME
        return self._read(file) if file.exists() else None

    def save_best(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write the weights together with the identity of the training."""
        write_tensors(self.weights_file, weights, {**facts, **self.header.identity})

    def save_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write what is needed to continue."""
        write_tensors(self.path / RESUME, tensors, {**facts, **self.header.identity})

    def log(self, line: Mapping[str, Any]) -> None:
        """Add an epoch; lines of a killed process for it and later epochs are dropped first."""
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
        """The complete lines of the log."""
        file = self.path / LOG
        if not file.exists():
            return []
        try:
            text = read_regular_file(file, MAX_JSON_BYTES).decode()
            lines = [parse_json(line) for line in text.split("\n")[:-1]]  # the last may be cut
            wrong = [k for k, line in enumerate(lines, 1) if any(problems(line, LOG_LINE))]
            if wrong:
                raise ValueError(f"line {wrong[0]} must be {LOG_LINE.words}")
            if any(line.keys() != lines[0].keys() for line in lines):
                raise ValueError("its lines have different keys")
            return lines
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file}: not a log ({error}); remove it") from error

    def best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The best weights, and the facts saved with them."""
        if not self.weights_file.exists():
            raise CheckpointError(f"{self.path}: no epoch is finished yet; continue the training")
        return self._read(self.weights_file)

    def _read(self, file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and facts in a file; raise if they are of another training."""
        tensors, facts = read_tensors(file)
        theirs = _identity(facts)
        wrong = [name for name, value in self.header.identity.items() if theirs[name] != value]
        if wrong:
            raise CheckpointError(
                f"{file}: belongs to another training, by its {' and '.join(wrong)}; "
                "restore the folder as it was written"
            )
        return tensors, facts

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Write the outcome, and remove the state to continue from."""
        self.header = replace(self.header, outcome=dict(outcome))
        self._write_header()
        (self.path / RESUME).unlink(missing_ok=True)

    def _write_header(self) -> None:
        with disk_errors(self.path, CheckpointError):
            text = json.dumps(self.header.to_json(), indent=1, ensure_ascii=False)
            replace_file(self.path / HEADER, f"{text}\n".encode())


def is_run(path: str | Path) -> bool:
    """Whether the path is the folder of a training."""
    return (Path(path) / HEADER).is_file()


def _identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """All by which trainings differ, except the number of epochs."""
    identity = {name: facts.get(name) for name in ("model", "config", "seed", "place", "data")}
    if isinstance(identity["config"], Mapping) and "training" in identity["config"]:
        training = {k: v for k, v in identity["config"]["training"].items() if k != "epochs"}
        identity["config"] = {**identity["config"], "training": training}
    return identity


def _as_line(line: Mapping[str, Any]) -> str:
    finite = {name: value if isfinite(value) else None for name, value in line.items()}
    return json.dumps(finite) + "\n"


def _read_header(file: Path) -> Header:
    if not file.exists():
        raise CheckpointError(f"{file.parent}: not a training; it has no {HEADER}")
    advice = "restore it, or choose another folder"
    facts = read_json(file, HEADER_SCHEMA, CheckpointError, advice, version=("format", FORMAT))
    return Header(domain=Domain(**facts.pop("place")), **facts)
