"""Networks: encoders and decoders with their heads, latent maps, and U-Nets."""

from vspair.networks.autoencoders import ConvDecoder as ConvDecoder
from vspair.networks.autoencoders import Decoder as Decoder
from vspair.networks.autoencoders import Encoder as Encoder
from vspair.networks.autoencoders import Grid as Grid
from vspair.networks.autoencoders import LatentMap as LatentMap
from vspair.networks.autoencoders import MLPDecoder as MLPDecoder
from vspair.networks.autoencoders import NetworkConfig as NetworkConfig
from vspair.networks.autoencoders import NetworkName as NetworkName
from vspair.networks.autoencoders import Upsample as Upsample
from vspair.networks.autoencoders import evaluating as evaluating
from vspair.networks.autoencoders import exactly as exactly
from vspair.networks.autoencoders import mlp as mlp
from vspair.networks.moves import LatentMoves as LatentMoves
from vspair.networks.moves import squared_changes as squared_changes
