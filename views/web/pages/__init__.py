"""Contents of the pages, as structures for the templates."""
