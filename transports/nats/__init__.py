"""`nats://` and `tls://`: subjects and streams of NATS."""
