"""What all forecasters that are shown lagged values share: inputs, encoder, blocks, rollout."""
