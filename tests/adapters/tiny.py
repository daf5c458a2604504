"""Pretrained models in miniature: real networks of each library with a few random weights."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model

DECILES = [level / 10 for level in range(1, 10)]
PATCHES = {"context_length": 128, "input_patch_size": 16, "input_patch_stride": 16}
SIZES = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}


def module_of(name: str) -> Any:
    """The module, or the test is skipped where it is not installed."""
    pytest.importorskip(name.split(".")[0])
    return import_module(name)


def chronos_bolt(folder: Path) -> None:
    network = module_of("chronos.chronos_bolt").ChronosBoltModelForForecasting
    kind = module_of("transformers.models.t5.modeling_t5").T5Config
    config = kind(
        **SIZES,
        num_decoder_layers=1,
        vocab_size=2,
        decoder_start_token_id=0,
        architectures=[network.__name__],
    )
    config.chronos_pipeline_class = "ChronosBoltPipeline"
    options = {"prediction_length": 16, "quantiles": DECILES, "use_reg_token": True}
    config.chronos_config = PATCHES | options
    network(config).save_pretrained(folder)


def chronos_2(folder: Path) -> None:
    network = module_of("chronos.chronos2.model").Chronos2Model
    options = {"output_patch_size": 16, "max_output_patches": 4, "use_arcsinh": True}
    config = module_of("chronos.chronos2.config").Chronos2CoreConfig(
        **SIZES,
        architectures=[network.__name__],
        chronos_config=PATCHES | options | {"quantiles": DECILES, "use_reg_token": True},
    )
    config.chronos_pipeline_class = "Chronos2Pipeline"
    network(config).save_pretrained(folder)


def timesfm(folder: Path) -> None:
    configs = module_of("timesfm3.torch.configs")
    layer = configs.TransformerConfig(
        model_dims=16,
        hidden_dims=16,
        num_heads=2,
        attention_norm="rms",
        feedforward_norm="rms",
        qk_norm="rms",
        use_bias=False,
        use_rope_seq=True,
        use_rope_var=True,
        ff_activation="relu",
        deterministic=True,
    )
    block = configs.ResidualBlockConfig(
        hidden_dims=16, output_dims=16, use_bias=False, activation="relu"
    )
    network = module_of("timesfm3.torch.model").TimesFM3Torch(
        input_patch_len=32,
        output_patch_len=64,
        quantiles=DECILES,
        residual_block_config=block,
        transformer_config=configs.StackedTransformersConfig(num_layers=1, transformer=layer),
    )
    network.save_pretrained(folder)


def tirex(folder: Path) -> None:
    blocks = {"num_blocks": 1, "embedding_dim": 16, "num_heads": 2}
    options = {"input_patch_size": 32, "output_patch_size": 32, "input_ff_dim": 16}
    parameters = {
        "model_config": options | {"quantiles": DECILES, "block_kwargs": blocks},
        "train_ctx_len": 128,
    }
    network = module_of("tirex.models.tirex").TiRexZero(backend="torch", **parameters)
    for weight in network.parameters():  # some are not initialised
        torch.nn.init.normal_(weight, std=0.1)
    folder.mkdir()
    state = {"hyper_parameters": parameters, "state_dict": network.state_dict()}
    torch.save(state, folder / "model.ckpt")


def fracast(folder: Path) -> None:
    """The weights of the package, which are small enough, as a folder."""
    package = module_of("fracast")
    folder.mkdir()
    for file in (Path(package.__file__).parent / "weights").glob("*.*s*"):
        (folder / file.name).write_bytes(file.read_bytes())


def toto(folder: Path) -> None:
    config = {
        "patch_size": 16,
        "stride": 16,
        "embed_dim": 16,
        "num_layers": 2,
        "num_heads": 2,
        "mlp_hidden_dim": 16,
        "dropout": 0.0,
        "spacewise_every_n_layers": 2,
        "scaler_cls": "<class 'model.scaler.CausalPatchStdMeanScaler'>",
        "output_distribution_classes": ["<class 'model.distribution.MixtureOfStudentTsOutput'>"],
        "output_distribution_kwargs": {"k_components": 3},
        "use_memory_efficient_attention": False,
    }
    network = module_of("toto.model.toto").Toto(**config)
    folder.mkdir()
    save_model(network, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config))


def moirai_2(folder: Path) -> None:
    network = module_of("uni2ts.model.moirai2").Moirai2Module(
        d_model=64,  # a head has 64 dimensions
        d_ff=16,
        num_layers=1,
        patch_size=16,
        max_seq_len=64,
        attn_dropout_p=0.0,
        dropout_p=0.0,
        num_predict_token=2,
        quantile_levels=DECILES,
    )
    network.save_pretrained(folder)


MAKERS = {
    "chronos-2": chronos_2,
    "chronos-bolt": chronos_bolt,
    "fracast": fracast,
    "timesfm": timesfm,
    "tirex": tirex,
    "toto": toto,
    "moirai-2": moirai_2,
}
