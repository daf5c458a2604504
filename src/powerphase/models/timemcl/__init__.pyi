from .config import TimeMCLConfig as TimeMCLConfig
from .distances import squared_errors as squared_errors
from .model import TimeMCL as TimeMCL
from .network import Hypotheses as Hypotheses
from .network import TimeMCLNetwork as TimeMCLNetwork
from .network import cross_entropy as cross_entropy
