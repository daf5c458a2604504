from .importer import import_states as import_states
from .mapping import Column as Column
from .mapping import SourceMapping as SourceMapping
from .mapping import read_mapping as read_mapping
from .networks import Network as Network
from .networks import read_network as read_network
from .readings import Readings as Readings
