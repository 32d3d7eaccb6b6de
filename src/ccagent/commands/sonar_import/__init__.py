"""Import of Sonar's configuration."""
