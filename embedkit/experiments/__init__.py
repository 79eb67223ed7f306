"""An experiment as one file.

``recipe`` reads and checks it, ``pipeline`` runs it, ``fetch`` downloads what it needs.
"""
