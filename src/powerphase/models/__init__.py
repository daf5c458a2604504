"""Forecasters. `powerphase.models.LastWeek()` and its like are loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from powerphase.models.deepar.config import DeepARConfig as DeepARConfig
    from powerphase.models.deepar.model import DeepAR as DeepAR
    from powerphase.models.ets.config import ETSConfig as ETSConfig
    from powerphase.models.ets.model import ETS as ETS
    from powerphase.models.factorforge.config import FactorForgeConfig as FactorForgeConfig
    from powerphase.models.factorforge.model import FactorForge as FactorForge
    from powerphase.models.flows.tempflow.config import TempFlowConfig as TempFlowConfig
    from powerphase.models.flows.tempflow.model import TempFlow as TempFlow
    from powerphase.models.flows.transformer.config import (
        TransformerTempFlowConfig as TransformerTempFlowConfig,
    )
    from powerphase.models.flows.transformer.model import (
        TransformerTempFlow as TransformerTempFlow,
    )
    from powerphase.models.framework.base import Forecaster as Forecaster
    from powerphase.models.framework.training_config import TrainingConfig as TrainingConfig
    from powerphase.models.naive import Climatology as Climatology
    from powerphase.models.naive import LastSevenDays as LastSevenDays
    from powerphase.models.naive import LastWeek as LastWeek
    from powerphase.models.powerforge.config import PowerForgeConfig as PowerForgeConfig
    from powerphase.models.powerforge.model import PowerForge as PowerForge
    from powerphase.models.tactis.config import TactisConfig as TactisConfig
    from powerphase.models.tactis.model import TACTiS as TACTiS
    from powerphase.models.timegrad.config import TimeGradConfig as TimeGradConfig
    from powerphase.models.timegrad.model import TimeGrad as TimeGrad
    from powerphase.models.timemcl.config import TimeMCLConfig as TimeMCLConfig
    from powerphase.models.timemcl.model import TimeMCL as TimeMCL
    from powerphase.models.timeprism.config import TimePrismConfig as TimePrismConfig
    from powerphase.models.timeprism.model import TimePrism as TimePrism

_HOMES = {
    "Climatology": "powerphase.models.naive",
    "DeepAR": "powerphase.models.deepar.model",
    "DeepARConfig": "powerphase.models.deepar.config",
    "ETS": "powerphase.models.ets.model",
    "ETSConfig": "powerphase.models.ets.config",
    "FactorForge": "powerphase.models.factorforge.model",
    "FactorForgeConfig": "powerphase.models.factorforge.config",
    "Forecaster": "powerphase.models.framework.base",
    "LastSevenDays": "powerphase.models.naive",
    "LastWeek": "powerphase.models.naive",
    "PowerForge": "powerphase.models.powerforge.model",
    "PowerForgeConfig": "powerphase.models.powerforge.config",
    "TACTiS": "powerphase.models.tactis.model",
    "TactisConfig": "powerphase.models.tactis.config",
    "TempFlow": "powerphase.models.flows.tempflow.model",
    "TempFlowConfig": "powerphase.models.flows.tempflow.config",
    "TimeGrad": "powerphase.models.timegrad.model",
    "TimeGradConfig": "powerphase.models.timegrad.config",
    "TimeMCL": "powerphase.models.timemcl.model",
    "TimeMCLConfig": "powerphase.models.timemcl.config",
    "TimePrism": "powerphase.models.timeprism.model",
    "TimePrismConfig": "powerphase.models.timeprism.config",
    "TrainingConfig": "powerphase.models.framework.training_config",
    "TransformerTempFlow": "powerphase.models.flows.transformer.model",
    "TransformerTempFlowConfig": "powerphase.models.flows.transformer.config",
}

__all__ = [
    "ETS",
    "Climatology",
    "DeepAR",
    "DeepARConfig",
    "ETSConfig",
    "FactorForge",
    "FactorForgeConfig",
    "Forecaster",
    "LastSevenDays",
    "LastWeek",
    "PowerForge",
    "PowerForgeConfig",
    "TACTiS",
    "TactisConfig",
    "TempFlow",
    "TempFlowConfig",
    "TimeGrad",
    "TimeGradConfig",
    "TimeMCL",
    "TimeMCLConfig",
    "TimePrism",
    "TimePrismConfig",
    "TrainingConfig",
    "TransformerTempFlow",
    "TransformerTempFlowConfig",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'powerphase.models' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
