"""Data sets: the recipe, the generator, the store on disk, and its certificate."""
