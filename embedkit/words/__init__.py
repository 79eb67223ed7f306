"""Words in context: ``uses`` finds them, ``describe`` compares them, ``wic`` scores pairs."""
