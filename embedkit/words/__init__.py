"""Words in context: ``matching`` finds them, ``uses`` compares them, ``wic`` scores pairs."""
