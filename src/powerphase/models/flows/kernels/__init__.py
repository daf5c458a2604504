"""The flow's passes over windows × steps × channels, as Triton kernels.

A training step is limited by how often it reads and writes such tensors. For three couplings, in
units of a tensor with all channels, the flow reads and writes:

    operation                                   first PyTorch version   kernels
    moments of the inputs                               6                 1
    three projections, forward                         10                 5
    three transforms, forward                          32                 9.5
    both, recomputed in the backward pass              42                 6.5
    gradients of projections                           12                 7
    gradients of transforms                            47.5              16
    total                                             149.5              45

Every second channel of a row counts as the whole row where it is interleaved with the others,
because that is what memory fetches. The first PyTorch version is the one before values were divided
in place, which saves 8 in the flow, and 4 of 10 in the LSTM's inputs. PyTorch computes the products
with the networks' layers; what they read and write of such tensors is included. The equivalent of
each kernel is in `realnvp.py`, differentiated by autograd.
"""
