"""Statistics of Lustre servers, clients and network."""
