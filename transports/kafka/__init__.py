"""`kafka://` and `kafkas://`: topics of Apache Kafka."""
