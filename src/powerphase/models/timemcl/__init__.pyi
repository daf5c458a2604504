from .distances import squared_errors as squared_errors
from .model import Hypotheses as Hypotheses
from .model import TimeMCL as TimeMCL
from .model import TimeMCLConfig as TimeMCLConfig
from .model import TimeMCLNetwork as TimeMCLNetwork
from .model import cross_entropy as cross_entropy
