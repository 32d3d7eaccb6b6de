"""Views: what people look at, in a terminal and in a browser."""
