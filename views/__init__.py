"""Views of ccagent's data for people, in a terminal and in a browser."""
