"""The flow's passes over windows × steps × channels, as Triton kernels.

A step of training is bound by how often it reads and writes such tensors. Counted in tensors of all
channels, for three couplings, the flow goes over them so often:

    what is done                                 plain, at first   by kernels
    moments of the values as they are given             6               1
    three contractions, forward                        10               5
    three moves, forward                               32               9.5
    both, once more in the backward pass               42               6.5
    slopes of contractions                             12               7
    slopes of moves                                    47.5            16
    together                                          149.5            45

Every second channel of a row counts as all of it where it lies among the others, for that is what
memory fetches. "At first" is before values were divided into their place, which saves the plain
form 8, and the LSTM's inputs 4 of 10. Products with the networks' layers are left to PyTorch; what
they read and write of such tensors is in the count. The twin of each kernel is the plain form of
`coupling.py`, which autograd differentiates.
"""
