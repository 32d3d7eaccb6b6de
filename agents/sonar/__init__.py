"""The agent `sample`: processes and jobs of this node, and the state of the node itself."""
