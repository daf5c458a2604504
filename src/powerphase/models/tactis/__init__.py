"""TACTiS-2: a transformer over tokens that learns the margin of each, then how they depend."""
