"""What builds the docs site: the generated reference, and a hook for mkdocs."""
