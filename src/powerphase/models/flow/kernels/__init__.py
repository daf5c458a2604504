"""The flow's passes over windows × steps × channels, as Triton kernels.

A step of training is bound by how often it reads and writes such tensors. Counted in tensors of all
channels, and with every second channel of a row counted as all of it, for that is what memory
fetches, the couplings of a step go over them so often:

    what is done                                     in plain PyTorch   by kernels
    moments of the values as they are given                  6               1
    three contractions, forward                             10               5
    three moves, forward                                    30              10
    both made once more in the backward pass                40               7
    slopes of contractions                                  11               7
    slopes of moves                                         60              18
    together                                               157              48

Products with the networks' layers are left to PyTorch; what they read and write is in the count.
The twin of each kernel is the plain form of `coupling.py`, which autograd differentiates.
"""
