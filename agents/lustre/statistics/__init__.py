"""Statistics of Lustre's servers, clients and network."""
