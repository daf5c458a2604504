"""What the pages on training and PowerForge show is so."""

import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

from powerphase.models.framework import RunFolder, make_config
from powerphase.models.powerforge import ABLATIONS, READINGS, PowerForgeConfig
from powerphase.records import read_results
from tests.pages import blocks, commands, output_of, section

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "training.md").read_text(encoding="utf-8")


class Writer:
    """Stands for TensorBoard's writer, which is no dependency."""

    written: ClassVar[list[tuple[str, float, int]]] = []

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None: ...

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.written.append((name, value, step))


def test_the_tensorboard_example_writes_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = blocks(section(PAGE, "TensorBoard"), "python")
    (tmp_path / "runs/powerforge").mkdir(parents=True)
    lines = [{"epoch": k, "step": 30 * k, "loss": 1 / k} for k in (1, 2)]
    log = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "runs/powerforge/log.jsonl").write_text(log)
    module = ModuleType("torch.utils.tensorboard")
    vars(module).update(SimpleNamespace(SummaryWriter=Writer).__dict__)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "training.md", "exec"), {})
    assert ("loss", 0.5, 60) in Writer.written
    assert len(Writer.written) == 6


def test_the_example_network_is_trained_and_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = section(PAGE, "A network of your own")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mynetwork", raising=False)
    Path("mynetwork.py").write_text(*blocks(part, "python"))
    output_of("powerphase generate ieee57 --end 2015-03-01")
    at_once, benched = (output_of(command) for command in commands(part) if " --" in command)
    assert "linear, seed 42 on ieee57 synthetic" in at_once
    assert "all cells are done" in benched
    (row,) = read_results([tmp_path / "results"])
    assert (row.model, row.variant, row.cost["steps"]) == ("linear", None, 60)
    (run,) = (tmp_path / "runs").rglob("linear-42")
    losses = [epoch["loss"] for epoch in RunFolder.open(run).curve()]
    assert losses == sorted(losses, reverse=True)  # it learns


def test_the_example_config_is_valid() -> None:
    (text,) = blocks(PAGE, "toml")
    config = make_config(PowerForgeConfig, tomllib.loads(text))
    assert not config.physics
    assert config.training.epochs == 50


def test_every_ablation_has_the_variant_of_the_page() -> None:
    page = (DOCS / "powerforge.md").read_text()
    rows = re.findall(r"\| `(\w+) = (.+?)` \| `powerforge\+([\w-]+)` \|", page)
    assert {field for field, _, _ in rows} == set(ABLATIONS)
    for field, value, variant in rows:
        config = make_config(PowerForgeConfig, tomllib.loads(f"{field} = {value}"))
        assert config.variant("activsg500") == variant


def test_every_reading_has_the_fields_of_the_page() -> None:
    page = (DOCS / "powerforge.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (`\w[\w.]* = .*) \|$", page, re.MULTILINE)
    assert {word for word, _ in rows} == set(READINGS)
    for word, fields in rows:
        config = make_config(
            PowerForgeConfig, tomllib.loads("\n".join(re.findall(r"`(.*?)`", fields)))
        )
        assert config.variant("activsg500") == word


def test_every_example_config_is_valid() -> None:
    examples = sorted((DOCS.parent / "examples").glob("*.toml"))
    assert examples
    for file in examples:
        make_config(PowerForgeConfig, tomllib.loads(file.read_text()))
