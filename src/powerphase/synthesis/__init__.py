"""From national signals to the active and reactive power at every bus."""
